/* Repairs: a held lock gets back the vote of a master that lacks its key (row 73, `quorum.repair`).

   A holder extends its lock round by round, and a rival tries to get it. Time passes in ticks, and every counter holds
   the ticks that are left. All locks have the same ttl, so a master that forgets is kept out for TTL. Messages of one
   connection arrive in their order, at any time, or never.

   With UNGUARDED a master that forgets is not kept out: then a lock may have two holders, but an extension that begins
   after that must not succeed. With PROMPT nothing comes between the messages of the holder, but the holder may stand
   still: then a key must not outlive its lock by more than a ttl. */

#define N 3
#define Q 2
#define TTL 2

#ifndef FORGETS
#define FORGETS 1
#endif
#ifndef BREAKS
#define BREAKS 0
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef TRIES
#define TRIES 1
#endif

#ifdef UNGUARDED
#define OUT 0
#else
#define OUT TTL
#endif

/* Whose key a master has. */
#define HOLDER 1
#define RIVAL 2

/* Votes. */
#define NONE 0
#define SENT 1
#define YES 2
#define NO 3
#define ASKED 4        /* the repair was sent */

/* Releases. */
#define UNDERWAY 1
#define ARRIVED 2

typedef Master {
    byte key;
    byte key_left;
    byte out;
    /* of the holder */
    byte vote;
    bit repair;        /* a repair is under way */
    byte release;
    bit carried;       /* the repair has succeeded */
    /* of the rival */
    byte rival_vote
};

Master m[N];
bit held = 1;          /* the holder has not released the lock, and its deadline has not passed */
byte left = TTL;
byte since = 0;        /* how long ago the round began, at most TTL */
bit granted = 0;       /* in this round, a quorum has extended the lock in time */
bit stale = 0;         /* before this round, the rival had the lock */
byte ended = 0;        /* how long ago the lease ended, at most TTL + 1 */
byte rounds = 0;
bit rival_asks = 0;
bit rival_has = 0;
bit rival_had = 0;
byte rival_left = 0;
byte tries = 0;
byte forgets = 0;
byte breaks = 0;
byte forgotten = 0;    /* how many masters have forgotten */

#ifdef COUNTS_AT_ONCE
#define yes(i) (m[i].vote == YES || m[i].carried)
#else
#define yes(i) (m[i].vote == YES)
#endif
#define votes (yes(0) + yes(1) + yes(2))
#define rival_yes(i) (m[i].rival_vote == YES)
#define rival_votes (rival_yes(0) + rival_yes(1) + rival_yes(2))
#define certain (held && left > 0)
#define rival_certain (rival_has && rival_left > 0)
/* Masters are alike, so number 0 is the first that forgets. */
#define is_next(i) (i <= forgotten)
#define larger(a, b) ((a) > (b) -> (a) : (b))

#ifdef WITHOUT_QUORUM
#define may_repair (rounds > 0)
#else
#define may_repair (granted)
#endif
#if defined(AFTER_RELEASE)
#define still_held(i) (certain || m[i].release == ARRIVED)
#elif defined(AFTER_DEADLINE)
#define still_held(i) (m[i].release == NONE)
#else
#define still_held(i) (certain)
#endif

#define arriving(i) (m[i].vote == SENT || m[i].repair || m[i].release == UNDERWAY)
#define due(i) (m[i].vote == NO && granted && certain)
#define may_grant (certain && rounds > 0 && !granted && since < TTL && votes >= Q)
#ifdef PROMPT
#define time_may_pass (!arriving(0) && !arriving(1) && !arriving(2))
#define others_may_act (time_may_pass && !may_grant && !due(0) && !due(1) && !due(2))
#else
#define time_may_pass (true)
#define others_may_act (true)
#endif

/* A connection breaks. What is under way is lost, but the link owes the release. */
inline drop(i) {
    m[i].vote = (m[i].vote == SENT -> NONE : m[i].vote);
#ifndef PARKS_REPAIRS
    m[i].vote = (m[i].vote == NO -> NONE : m[i].vote);
    m[i].repair = 0;
#endif
    m[i].rival_vote = (m[i].rival_vote == SENT -> NONE : m[i].rival_vote)
}

inline at(i) {
    if
    /* The holder. A command waits for the earlier ones of its connection. */
    :: d_step { m[i].vote == SENT && !m[i].repair ->
        if
        :: m[i].key == HOLDER ->
            printf("EXTEND at %d: yes\n", i);
            m[i].key_left = TTL;
            m[i].vote = YES
        :: else ->
            printf("EXTEND at %d: no\n", i);
            m[i].vote = NO
        fi }
    :: d_step { m[i].vote == NO && may_repair && still_held(i) && !m[i].repair ->
        printf("the holder sends a repair to %d\n", i);
        m[i].repair = 1;
        m[i].vote = ASKED }
    :: d_step { m[i].repair ->
        printf("the repair arrives at %d, whose key is %d\n", i, m[i].key);
        m[i].repair = 0;
        /* No key is set on a master that is kept out. */
        assert(m[i].out == 0);
#ifdef OVERWRITES
        if
        :: true ->
            /* A rival keeps the vote that it has. */
            assert(m[i].key != RIVAL);
#else
        if
        :: m[i].key == 0 ->
#endif
            m[i].key = HOLDER;
            m[i].key_left = TTL;
            m[i].carried = 1
        :: else
        fi }
    :: d_step { m[i].release == UNDERWAY && m[i].vote != SENT && !m[i].repair ->
        printf("the release arrives at %d\n", i);
        m[i].key = (m[i].key == HOLDER -> 0 : m[i].key);
        m[i].release = ARRIVED }
    /* The rival. */
    :: d_step { m[i].rival_vote == SENT && others_may_act ->
        if
        :: m[i].key == 0 ->
            printf("SET of the rival at %d: yes\n", i);
            m[i].key = RIVAL;
            m[i].key_left = TTL;
            m[i].rival_vote = YES
        :: else ->
            printf("SET of the rival at %d: no\n", i);
            m[i].rival_vote = NO
        fi }
    /* What happens to a master. */
    :: d_step { forgets < FORGETS && is_next(i) && others_may_act ->
        printf("master %d forgets\n", i);
        forgets++;
        forgotten = larger(forgotten, i + 1);
        m[i].key = 0;
        m[i].key_left = 0;
        m[i].out = OUT;
        drop(i) }
    :: d_step { breaks < BREAKS ->
        printf("the connections to %d break\n", i);
        breaks++;
        drop(i) }
    fi
}

inline ask_at(i) {
    m[i].vote = (m[i].out == 0 -> SENT : NONE)
}

inline release_at(i) {
    m[i].release = UNDERWAY
}

inline rival_asks_at(i) {
    m[i].rival_vote = (m[i].out == 0 -> SENT : NONE)
}

inline rival_undoes_at(i) {
    m[i].rival_vote = NONE;
    m[i].key = (m[i].key == RIVAL -> 0 : m[i].key)
}

inline tick_at(i) {
    m[i].out = (m[i].out > 0 -> m[i].out - 1 : 0);
    m[i].key = (m[i].key_left > 1 -> m[i].key : 0);
    m[i].key_left = (m[i].key_left > 0 -> m[i].key_left - 1 : 0)
}

/* Nothing of the holder is left, and nothing comes any more. */
#define quiet(i) (m[i].vote != SENT && m[i].vote != NO && !m[i].repair && m[i].key != HOLDER)
#define over (!held && quiet(0) && quiet(1) && quiet(2))

#define wrong_at(i) (m[i].release == ARRIVED && m[i].key == HOLDER)
#define orphan_at(i) (ended > TTL && m[i].key == HOLDER)

active proctype world() {
    d_step {
        m[0].key = HOLDER;
        m[0].key_left = TTL;
        m[1].key = HOLDER;
        m[1].key_left = TTL;
        m[2].key = HOLDER;
        m[2].key_left = TTL
    }
    do
    :: over -> break
#ifndef UNGUARDED
    :: certain && rival_certain -> printf("both have the lock\n"); assert(false)
#endif
    :: wrong_at(0) || wrong_at(1) || wrong_at(2) -> printf("a key has come back behind its release\n"); assert(false)
#ifdef PROMPT
    :: orphan_at(0) || orphan_at(1) || orphan_at(2) -> printf("a key outlives its lock by more than a ttl\n"); assert(false)
#endif
    :: atomic { true ->
    if
    :: at(0)
    :: at(1)
    :: at(2)
    :: d_step { held && rounds < ROUNDS && (rounds == 0 || since > 0) ->
        printf("the holder extends\n");
        rounds++;
        since = 0;
        granted = 0;
        stale = rival_had;
        ask_at(0);
        ask_at(1);
        ask_at(2) }
    :: d_step { may_grant ->
        printf("a quorum has extended the lock\n");
        /* Extending never brings a lost lock back. */
        assert(!stale);
        granted = 1;
        left = larger(left, TTL - since) }
    :: d_step { held && rounds > 0 ->
        printf("the holder releases the lock\n");
        held = 0;
        release_at(0);
        release_at(1);
        release_at(2) }
    :: d_step { !rival_asks && !rival_has && tries < TRIES ->
        printf("the rival asks\n");
        tries++;
        rival_asks = 1;
        rival_left = TTL;
        rival_asks_at(0);
        rival_asks_at(1);
        rival_asks_at(2) }
    :: d_step { rival_asks && rival_left > 0 && rival_votes >= Q ->
        printf("the rival has the lock\n");
        rival_asks = 0;
        rival_has = 1;
        rival_had = 1 }
    :: d_step { (rival_asks || rival_has) && others_may_act ->
        printf("the rival gives up or releases\n");
        rival_asks = 0;
        rival_has = 0;
        rival_left = 0;
        rival_undoes_at(0);
        rival_undoes_at(1);
        rival_undoes_at(2) }
    :: d_step { time_may_pass ->
        printf("time passes\n");
        tick_at(0);
        tick_at(1);
        tick_at(2);
        ended = (!held && ended <= TTL -> ended + 1 : ended);
        left = (left > 0 -> left - 1 : 0);
        held = (left == 0 -> 0 : held);
        since = (since < TTL -> since + 1 : since);
        rival_left = (rival_left > 0 -> rival_left - 1 : 0)
        }
    fi }
    od
}
