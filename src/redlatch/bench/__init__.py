"""`redlatch bench`: redlatch, its peers and the physical floor raced on real masters, in interleaved rounds of one run.

A ratio on a time says how many times longer than its base a contender takes, a ratio on a rate how many times more it
does. The floor is `floor.c`: raw sockets, one poll, every reply verified.

::

    command     the command line: options, exit status
    run         the scenarios in order, and the result
    scenarios   what races what, how wide, for how long, and which ratios are formed;  hot: where all want one name
    rounds      the rounds of one scenario, and what they have in common
    process     a contender's process as the race sees it: start it, order a run, read the answer
    team        the processes of one contender;  ledger: what they share, and how two owners at once are found out
    grounds     where a scenario takes place: masters on TCP, unix sockets or TLS, and sick ones
    tls         a certificate for the masters of an hour;  blackhole: a network that swallows
    floor       compiles floor.c
    serve       what a contender process runs (`python -m redlatch.bench.serve`)
    contender   the base of all contenders, and the registry;  order: one run and its figures
    ours        redlatch itself;  peers: the other lock clients, one class each;  imports: how long each takes to import
    split       rivals that start at one moment, with masters and network acted out
    tables      the result on the terminal;  plots: the same as pictures;  machine: what it was measured on

To add a peer, write a class in `peers` and an entry in `scenarios` or `hot`.
"""
