# Declarations of the compiled payloads, for the compiled commands. src/redlatch/votes/payloads.py describes them.

cpdef bytes set_nx(bytes key, bytes token, long long ttl_ms)
cpdef bytes delifeq(bytes key, bytes token)
cpdef bytes delex(bytes key, bytes token)
cpdef bytes strings(bytes begin, list arguments)
cpdef bytes joined(bytes first, bytes second)
cpdef bytes digits(unsigned long long number)
