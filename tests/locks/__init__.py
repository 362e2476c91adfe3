"""What both faces share: lock objects, the family, batches and the decorator; most tests use real masters."""
