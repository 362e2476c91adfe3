/* G1 to G4: how long a master that has forgotten its keys stays out.

   Time passes in ticks, and every counter holds the ticks that are left. SHORT is the default ttl, LONG is the longest
   one. Masters and clients are alike, so the first master that forgets is number 0, and client 0 asks first. */

#ifndef N
#define N 3
#endif
#ifndef FORGETS
#define FORGETS 2
#endif
#ifndef TRIES
#define TRIES 1
#endif
#ifndef FINDERS
#define FINDERS 1
#endif
#define Q (N / 2 + 1)
#define CLIENTS 2
#define SHORT 1
#define LONG 2

#ifdef ONE_WITNESS
#define ENOUGH 1
#else
#define ENOUGH (N - Q + 1)
#endif

/* Votes. A refusal counts like no vote. */
#define NONE 0
#define SENT 1
#define YES 2

typedef Master {
    bit marked;
    bit sure;
    byte horizon;
    byte out;          /* how long it is kept out */
    byte key;          /* the client that has the lock, from 1; or 0 */
    byte key_left
};

/* A client is connected to every master that has a marker: a link that is down longer can only do less. A RAISE is
   under way on each link whose client wants LONG; it arrives at any time, or never. */
typedef Link {
    bit stale;         /* the marker has another identity than when the link was adopted */
    bit acked;         /* LONG was acknowledged on this link; SHORT is from the start */
    byte vote
};

typedef Client {
    byte ttl;          /* of the lock that it asks for or holds; or 0 */
    byte left;         /* of its validity */
    byte tries;
#ifdef CACHES_RAISES
    bit cached;        /* a quorum has acknowledged LONG once */
#endif
    Link link[N]
};

/* What a client does about a master that it has found forgetful. */
typedef Finder {
    byte found;        /* the master, from 1; or 0 */
    bit unmarked;      /* whether that master had no marker */
    bit changed;       /* whether its marker has changed since then */
    byte since;        /* how long ago that was, at most LONG */
    byte seen;         /* the witnesses that it has read, as bits */
    byte horizon       /* the largest of theirs */
};

Master m[N];
Finder f[FINDERS];
Client c[CLIENTS];
byte forgets = 0;
byte forgotten = 0;    /* how many masters have forgotten */

#define up_to(j, i, t) (m[i].marked && (t == SHORT || c[j].link[i].acked))
#define yes(j, i) (c[j].link[i].vote == YES)
#define bit_of(j, i) ((f[j].seen >> i) & 1)
#if N == 3
#define raised(j, t) (up_to(j, 0, t) + up_to(j, 1, t) + up_to(j, 2, t))
#define votes(j) (yes(j, 0) + yes(j, 1) + yes(j, 2))
#define witnesses(j) (bit_of(j, 0) + bit_of(j, 1) + bit_of(j, 2))
#else
#define raised(j, t) (up_to(j, 0, t) + up_to(j, 1, t) + up_to(j, 2, t) + up_to(j, 3, t))
#define votes(j) (yes(j, 0) + yes(j, 1) + yes(j, 2) + yes(j, 3))
#define witnesses(j) (bit_of(j, 0) + bit_of(j, 1) + bit_of(j, 2) + bit_of(j, 3))
#endif
#define larger(a, b) ((a) > (b) -> (a) : (b))
/* Without another attempt of both clients, there cannot be two holders any more. */
#define may_hold(j) (c[j].ttl > 0 || c[j].tries < TRIES)
#define holds(j) (c[j].left > 0 && votes(j) >= Q)

/* A witness of a live lock that does not know how long it lives. */
#define weak(j, i) (yes(j, i) && m[i].key == j + 1 && c[j].ttl == LONG && m[i].horizon < LONG)
#if N == 3
#define weakly_held(j) (holds(j) && (weak(j, 0) || weak(j, 1) || weak(j, 2)))
#else
#define weakly_held(j) (holds(j) && (weak(j, 0) || weak(j, 1) || weak(j, 2) || weak(j, 3)))
#endif

/* G3: a vote counts only from a link that had acknowledged the ttl, with a quorum of such links, before the SET. */
#if defined(CACHES_RAISES)
#define may_send(j, i) (c[j].ttl == SHORT || c[j].cached || (up_to(j, i, LONG) && raised(j, LONG) >= Q))
#elif defined(PIPELINES_RAISES)
#define may_send(j, i) (1)
#else
#define may_send(j, i) (up_to(j, i, c[j].ttl) && raised(j, c[j].ttl) >= Q)
#endif

/* G4: a master that is kept out and unsure is no witness. */
#ifdef TRUSTS_UNSURE
#define is_witness(i) (m[i].marked)
#else
#define is_witness(i) (m[i].marked && (m[i].sure || m[i].out == 0))
#endif

inline drop(j, i) {
    c[j].link[i].stale = 0;
    c[j].link[i].acked = 0;
    c[j].link[i].vote = (c[j].link[i].vote == YES -> YES : NONE)
}

/* The marker of a master has changed: finders look again. */
inline note_change(i) {
    f[0].changed = (f[0].found == i + 1 -> 1 : f[0].changed)
#if FINDERS == 2
    f[1].changed = (f[1].found == i + 1 -> 1 : f[1].changed)
#endif
}

inline new_identity(i) {
    c[0].link[i].stale = m[i].marked;
    c[1].link[i].stale = m[i].marked;
    note_change(i)
}

inline end_finding(j) {
    f[j].found = 0;
    f[j].unmarked = 0;
    f[j].changed = 0;
    f[j].since = 0;
    f[j].seen = 0;
    f[j].horizon = 0
}

/* A RAISE arrives. With another identity in the marker, the link is dropped. */
inline raise(j, i) {
    if
    :: c[j].link[i].stale ->
        printf("RAISE of client %d is refused by master %d\n", j, i);
        drop(j, i)
    :: else ->
        printf("RAISE of client %d arrives at master %d\n", j, i);
#ifndef IGNORES_RAISES
        if
        :: m[i].horizon < LONG -> note_change(i)
        :: else
        fi;
#endif
        m[i].horizon = LONG;
        c[j].link[i].acked = 1;
#ifdef CACHES_RAISES
        c[j].cached = (c[j].cached || raised(j, LONG) >= Q);
#endif
    fi
}

inline client_at(j, i) {
    if
    :: d_step { c[j].ttl == LONG && m[i].marked && !c[j].link[i].acked && c[j].link[i].vote != SENT ->
        raise(j, i) }
    :: d_step { c[j].left > 0 && m[i].marked && c[j].link[i].vote == NONE && m[i].out == 0 && may_send(j, i) ->
        printf("client %d sends SET to master %d\n", j, i);
        c[j].link[i].vote = SENT }
    :: d_step { c[j].link[i].vote == SENT ->
        if
        :: c[j].ttl == LONG && !c[j].link[i].acked -> raise(j, i)
        :: else
        fi;
        if
        :: c[j].link[i].vote == SENT ->
            if
            :: m[i].key == 0 ->
                printf("SET of client %d arrives at master %d: yes\n", j, i);
                m[i].key = j + 1;
                m[i].key_left = c[j].ttl;
                c[j].link[i].vote = YES
            :: else ->
                printf("SET of client %d arrives at master %d: no\n", j, i);
                c[j].link[i].vote = NONE
            fi
        :: else
        fi }
    fi
}

/* Finders are alike, so number 0 is the first of two that do nothing. */
#define is_next(j) (j == 0 || f[0].found > 0)

inline finder_at(j, i) {
    if
#ifdef TRUSTS_MEMORY
    /* What it had read before a master forgot counts, too. */
    :: d_step { f[j].found == 0 && is_next(j) && !bit_of(j, i) && is_witness(i) ->
        printf("finder %d remembers master %d: horizon %d\n", j, i, m[i].horizon);
        f[j].seen = f[j].seen | (1 << i);
        f[j].horizon = larger(f[j].horizon, m[i].horizon) }
#endif
    :: d_step { f[j].found == 0 && is_next(j) && (!m[i].marked || (!m[i].sure && m[i].out > 0)) ->
        printf("finder %d sees that master %d has forgotten\n", j, i);
        f[j].found = i + 1;
        f[j].seen = f[j].seen & ~(1 << i);
        f[j].unmarked = !m[i].marked }
    :: d_step { f[j].found > 0 && f[j].found != i + 1 && !bit_of(j, i) && is_witness(i) ->
        printf("finder %d reads witness %d: horizon %d\n", j, i, m[i].horizon);
        f[j].seen = f[j].seen | (1 << i);
        f[j].horizon = larger(f[j].horizon, m[i].horizon) }
    :: d_step { f[j].found == i + 1 && (witnesses(j) >= ENOUGH || f[j].unmarked) && f[j].changed ->
        end_finding(j) }
    :: d_step { f[j].found == i + 1 && witnesses(j) >= ENOUGH && !f[j].changed ->
#ifdef MARKS_DEFAULT
        f[j].horizon = SHORT;
#endif
        new_identity(i);
        m[i].marked = 1;
        m[i].sure = 1;
        printf("finder %d marks master %d: sure, for %d less %d\n", j, i, f[j].horizon, f[j].since);
        m[i].out = (f[j].horizon > f[j].since -> f[j].horizon - f[j].since : 0);
#if defined(IGNORES_RAISES) || defined(LOWERS_HORIZON)
        m[i].horizon = f[j].horizon;
#else
        m[i].horizon = larger(m[i].horizon, f[j].horizon);
#endif
        end_finding(j) }
    :: d_step { f[j].found == i + 1 && f[j].unmarked && !f[j].changed ->
        new_identity(i);
        m[i].marked = 1;
        m[i].sure = 0;
        printf("finder %d marks master %d: unsure, for %d less %d\n", j, i, LONG, f[j].since);
        m[i].out = LONG - f[j].since;
        m[i].horizon = SHORT;
        end_finding(j) }
    fi
}

inline ask(j, t) {
    printf("client %d wants a lock of ttl %d\n", j, t);
    c[j].ttl = t;
    c[j].left = t;
    c[j].tries++
}

inline forget(i) {
    printf("master %d forgets\n", i);
    forgets++;
    m[i].marked = 0;
    m[i].sure = 0;
    m[i].horizon = 0;
    m[i].out = 0;
    m[i].key = 0;
    m[i].key_left = 0;
    drop(0, i);
    drop(1, i);
    note_change(i);
    forgotten = larger(forgotten, i + 1)
}

inline tick_master(i) {
    m[i].out = (m[i].out > 0 -> m[i].out - 1 : 0);
    m[i].key = (m[i].key_left > 1 -> m[i].key : 0);
    m[i].key_left = (m[i].key_left > 0 -> m[i].key_left - 1 : 0)
}

inline tick_client(j) {
    c[j].left = (c[j].left > 0 -> c[j].left - 1 : 0);
    if
    :: c[j].left == 0 ->
        c[j].ttl = 0;
        c[j].link[0].vote = NONE;
        c[j].link[1].vote = NONE;
        c[j].link[2].vote = NONE;
#if N == 4
        c[j].link[3].vote = NONE;
#endif
    :: else
    fi
}

inline tick_finder(j) {
    f[j].since = (f[j].found > 0 && f[j].since < LONG -> f[j].since + 1 : f[j].since)
}

inline begin(i) {
    m[i].marked = 1;
    m[i].sure = 1;
    m[i].horizon = SHORT
#ifdef CACHES_RAISES
    ;
    /* A quorum has once acknowledged LONG. Then the masters forgot one after the other, and were marked as unsure. */
    c[0].cached = 1
#endif
}

active proctype world() {
    d_step {
        begin(0);
        begin(1);
        begin(2);
#if N == 4
        begin(3);
#endif
    }
    do
    :: !may_hold(0) || !may_hold(1) -> break
    :: holds(0) && holds(1) -> printf("both clients hold the lock\n"); assert(false)
    :: weakly_held(0) || weakly_held(1) -> printf("a witness does not know the ttl of a live lock\n"); assert(false)
    :: atomic { may_hold(0) && may_hold(1) ->
    if
    :: client_at(0, 0)
    :: client_at(0, 1)
    :: client_at(0, 2)
    :: client_at(1, 0)
    :: client_at(1, 1)
    :: client_at(1, 2)
    :: finder_at(0, 0)
    :: finder_at(0, 1)
    :: finder_at(0, 2)
#if FINDERS == 2
    :: finder_at(1, 0)
    :: finder_at(1, 1)
    :: finder_at(1, 2)
#endif
#if N == 4
    :: client_at(0, 3)
    :: client_at(1, 3)
    :: finder_at(0, 3)
#endif
    :: d_step { c[0].ttl == 0 && c[0].tries < TRIES -> ask(0, SHORT) }
    :: d_step { c[0].ttl == 0 && c[0].tries < TRIES -> ask(0, LONG) }
    :: d_step { c[1].ttl == 0 && c[1].tries < TRIES && c[0].tries > 0 -> ask(1, SHORT) }
    :: d_step { c[1].ttl == 0 && c[1].tries < TRIES && c[0].tries > 0 -> ask(1, LONG) }
    :: d_step { forgets < FORGETS -> forget(0) }
    :: d_step { forgets < FORGETS && forgotten >= 1 -> forget(1) }
    :: d_step { forgets < FORGETS && forgotten >= 2 -> forget(2) }
#if N == 4
    :: d_step { forgets < FORGETS && forgotten >= 3 -> forget(3) }
#endif
    :: d_step {
        printf("time passes\n");
        tick_master(0);
        tick_master(1);
        tick_master(2);
#if N == 4
        tick_master(3);
#endif
        tick_client(0);
        tick_client(1);
        tick_finder(0);
#if FINDERS == 2
        tick_finder(1)
#endif
        }
    fi }
    od
}
