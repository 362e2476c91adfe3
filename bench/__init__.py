"""`python -m bench`: a race of redlatch, its peers and the physical floor on real masters, in interleaved rounds.

A ratio of times is a contender's time divided by the time of its base. A ratio of rates is its rate divided by the rate
of its base. The floor is `floor.c`: raw sockets, one poll, every reply verified.

::

    command     the command line: options, exit status
    run         the scenarios in order, and the result
    scenarios   the entries, widths, times and ratios of each scenario
    hot         the scenarios in which all callers want one name
    drop_ins    the scenarios of the drop-ins
    rounds      the rounds of one scenario, and their medians and ratios
    process     the race's side of a contender process: start it, order a run, read the answer
    team        the processes of one contender
    ledger      the memory that a team shares, in which two owners at once are detected
    grounds     the masters of a scenario: on TCP, unix sockets or TLS, and sick ones
    tls         a short-lived certificate for the masters
    blackhole   a relay that can drop all traffic
    floor       compiles floor.c
    serve       the program of a contender process (`python -m bench.serve`)
    contender   the base of all contenders, and the registry
    order       one run and its figures
    ours        redlatch itself
    peers       the other lock clients, one class each
    imports     the import time of each client
    foreign     the race against clients of other languages, and what they do not do
    builds      builds the programs of these clients
    split       rivals that start at one moment, with simulated masters and network
    tables      the result on the terminal
    plots       the result as pictures
    bars        the result of `foreign` as a picture
    machine     the machine and the versions that were measured

To add a peer, write a class in `peers` and an entry in `scenarios` or `hot`; for a peer of another language, a program
in `bench/languages` and an entry in `foreign.CLIENTS`.
"""
