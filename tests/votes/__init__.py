"""What is put to the masters, and how answers are counted: without servers, but for the scripts."""
