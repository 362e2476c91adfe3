/* G5: clients give different max_ttl, and masters forget which one is the largest.

   Time passes in ticks, as in horizon.pml. SHORT is the default ttl of all clients. LONG is the max_ttl of client 0,
   which wants one lock of that ttl. The max_ttl of client 1 is SHORT. It then wants one lock of ttl SHORT, and it knows
   of LONG only what it reads in markers. Another process, which has read nothing yet, may take its place at any time.

   Reads and changes of markers:
   - A read is one step. In the code it counts as old as its question, and as new as its answer.
   - A client may change the marker that it reads in the same step, or the change gets lost. A change that arrives
     later compares the text, so it does what a later read would lead to.
   - A master that forgets is marked at once. Until a later mark nobody could use it, and it would stay out for longer.
   - Any client may write this mark, and it says nothing of LONG. A client that knows LONG adds it with its next read.
   - A mark expects that there is none. So a late one may arrive when the master has forgotten again (`stray`).

   A master has *lapsed* from when it forgets until a client that knows LONG has read its marker and left LONG there.
   Once all masters had LONG at one moment, fewer than a quorum may have lapsed at a time. With MOST_LAPSE, any may.

   Clients do a little more here than in the code: links outlive changes of markers, and a client that knows LONG lets a
   master in before it has heard from others. They also do less. A client that makes a master sure reads both others at
   that moment; in horizon.pml these reads take time. Without RAISERS=2, only client 0 raises the limits. */

#ifndef FORGETS
#define FORGETS 2
#endif
#ifndef RAISERS
#define RAISERS 1
#endif
#ifndef LATE
#define LATE 0         /* for how many ticks a mark may be on its way */
#endif
#define N 3
#define SHORT 1        /* `tick_master` relies on that */
#define LONG 2

/* What a marker says of LONG: nothing, or its `raised` is LONG, or its `max_ttl` is. */
#define NOTHING 0
#define RAISED 1
#define ALLOWED 2

/* Links. On the last one the horizon LONG was acknowledged. */
#define DOWN 0
#define UP 1
#define ACKED 2

typedef Master {
    bit out;               /* it was marked because it had forgotten, and is not back after a sure time */
    bit sure;              /* it is kept out for SHORT, as witnesses have said; or it is not out */
    unsigned age : 2;      /* how long ago it was marked, at most LONG; 0 if it is not out */
    unsigned limit : 2;    /* what its marker says of LONG */
    bit horizon;           /* it is LONG */
    unsigned key : 2;      /* the client that has the lock, from 1; or 0 */
    unsigned key_left : 2;
    bit lapsed
};

/* What a client knows of a master, its link to it, and the vote. */
typedef View {
    bit noted;             /* when it was last read, its marker had LONG */
    bit again;             /* it was read since the last master was noted */
    bit changed;           /* its marker has changed since it was read */
#ifdef FORMER
    bit known;             /* it was read since its marker has changed */
#endif
    bit heard;             /* another master was read after this one was marked */
    unsigned link : 2;
    bit vote
};

typedef Client {
    bit longest;           /* it knows LONG */
    bit allowed;           /* it may use LONG */
    bit asked;
    unsigned left : 2;     /* of its validity */
    View v[N]
};

Master m[N];
Client c[2];
unsigned forgets : 3 = 0;
unsigned forgotten : 2 = 0;    /* how many masters have forgotten */
bit ready = 0;                 /* there was a moment at which all masters had LONG */
unsigned stray : 2 = 0;        /* the master that a mark of client 1 is on its way to, from 1; or 0 */
unsigned stray_age : 2 = 0;
#ifdef HEARS_SINCE_SENT
bit stray_heard = 0;           /* another master was read since then */
#endif

#define knows(i) (m[i].limit != NOTHING)
#define next(i) ((i + 1) % 3)
#define last(i) ((i + 2) % 3)
#define any_knows() (knows(0) || knows(1) || knows(2))
#define votes(j) (c[j].v[0].vote + c[j].v[1].vote + c[j].v[2].vote)
#define holds(j) (c[j].left > 0 && votes(j) >= 2)
#define may_hold(j) (c[j].left > 0 || !c[j].asked)
#define on_all(j, field) (c[j].v[0].field && c[j].v[1].field && c[j].v[2].field)
#define number(j, field) (c[j].v[0].field + c[j].v[1].field + c[j].v[2].field)

/* A master votes for a live lock whose ttl is not in its marker. */
#define weak(i) (c[0].v[i].vote && m[i].key == 1 && !knows(i))

#if defined(MOST_LAPSE)
#define may_forget(i) (true)
#elif defined(LAPSE_APART)
/* No other master is still kept out. */
#define rests(i) (!m[i].out || m[i].age == LONG)
#define may_forget(i) (!ready || (rests(next(i)) && rests(last(i))))
#else
#define may_forget(i) (!ready || (!m[next(i)].lapsed && !m[last(i)].lapsed))
#endif

/* When a larger max_ttl is on all masters, so that it may be allowed. */
#if defined(QUORUM_RAISED)
#define all_had(j) (number(j, noted) >= 2)
#elif defined(NOT_AT_ONCE)
#define all_had(j) (on_all(j, noted))
#else
#define all_had(j) (on_all(j, noted) && on_all(j, again))
#endif

/* For how long a client keeps a master out. */
#ifdef OUT_AS_MARKED
#define out_for(j, i) (SHORT)
#else
#define out_for(j, i) (!m[i].sure && c[j].longest -> LONG : SHORT)
#endif
#define over(j, i) (!m[i].out || m[i].age >= out_for(j, i))

/* Whether a client has heard from others what they know. */
#ifdef VOTES_UNHEARD
#define heard(j, i) (true)
#else
#define heard(j, i) (m[i].sure || c[j].longest || c[j].v[i].heard)
#endif

/* Whether reads of other masters count for this one: from when it was marked. */
#ifdef HEARS_EARLIER
#define is_awaited(i) (true)
#else
#define is_awaited(i) (!m[i].sure)
#endif

/* Whether a client still believes that it may use LONG when it reads a marker. The code does less than the last line,
   which needs fewer states. */
#if defined(FORMER)
#define believes(j, i) (m[i].limit == ALLOWED || c[j].v[i].known)
#elif defined(BELIEVES_RAISED)
#define believes(j, i) (m[i].out || m[i].limit != NOTHING)
#else
#define believes(j, i) (true)
#endif

/* What makes a reader know LONG. */
#ifdef IGNORES_RAISED
#define LEAST ALLOWED
#else
#define LEAST RAISED
#endif

/* What a client writes into a marker that it reads. */
#define limit_of_all(j) (!c[j].longest -> NOTHING : (c[j].allowed || all_had(j) -> ALLOWED : RAISED))
#ifdef LOSES_RAISE
#define wanted(j, i) (m[i].out -> m[i].limit : limit_of_all(j))
#else
#define wanted(j, i) (limit_of_all(j))
#endif

inline note_change(i) {
    c[0].v[i].changed = c[0].v[i].noted;
    c[1].v[i].changed = c[1].v[i].noted;
#ifdef FORMER
    c[0].v[i].known = 0;
    c[1].v[i].known = 0
#endif
}

inline hear(k, i) {
    if
    :: c[1].longest -> c[1].v[i].heard = 0
    :: !c[1].longest && k != i && is_awaited(i) -> c[1].v[i].heard = 1
    :: else
    fi
}

inline drop_notes(j, i) {
    c[j].v[i].noted = 0;
    c[j].v[i].again = 0;
    c[j].v[i].changed = 0
}

inline note_limit(j, i) {
    if
    :: c[j].allowed || j >= RAISERS ->
        drop_notes(j, 0);
        drop_notes(j, 1);
        drop_notes(j, 2)
    :: else ->
        if
        :: m[i].limit == NOTHING -> drop_notes(j, i)
        :: m[i].limit != NOTHING && (!c[j].v[i].noted || c[j].v[i].changed) ->
            c[j].v[i].noted = 1;
            c[j].v[0].again = 0;
            c[j].v[1].again = 0;
            c[j].v[2].again = 0;
            c[j].v[i].again = 1
        :: else -> c[j].v[i].again = 1
        fi;
        c[j].v[i].changed = 0
    fi
}

/* A client reads a marker. It raises the limit there; if that is not needed, it lets the master in when it may. */
inline read_marker(j, i, arrives) {
    c[j].longest = c[j].longest || m[i].limit >= LEAST;
    c[j].allowed = (c[j].allowed && believes(j, i)) || (j < RAISERS && m[i].limit == ALLOWED);
#ifdef FORMER
    c[j].v[i].known = (j < RAISERS);
#endif
    if
    :: j == 1 ->
        hear(i, 0);
        hear(i, 1);
        hear(i, 2);
#ifdef HEARS_SINCE_SENT
        stray_heard = (stray != 0 && stray != i + 1 -> 1 : stray_heard)
#endif
    :: else
    fi;
    note_limit(j, i);
    if
    :: over(j, i) && !heard(j, i) -> printf("client %d reads master %d and waits for word\n", j, i)
    :: !(over(j, i) && !heard(j, i)) && j < RAISERS && m[i].limit < wanted(j, i) ->
        if
        :: arrives ->
            printf("client %d writes to master %d that LONG is raised (1) or allowed (2): %d\n", j, i, wanted(j, i));
            m[i].limit = wanted(j, i);
            m[i].lapsed = 0;
            note_change(i);
            ready = ready || (knows(0) && knows(1) && knows(2))
        :: else
        fi
    :: else ->
        m[i].lapsed = m[i].lapsed && !(j < RAISERS && c[j].longest);
        if
        :: over(j, i) ->
            printf("client %d reads master %d and lets it in\n", j, i);
            c[j].v[i].link = (c[j].v[i].link == DOWN -> UP : c[j].v[i].link)
        :: else -> printf("client %d reads master %d\n", j, i)
        fi
    fi
}

/* Both others are witnesses: they are not out, or their time is over for a client that has read all. */
#define testifies(i) (!m[i].horizon && (m[i].sure || m[i].age >= (any_knows() -> LONG : SHORT)))

inline make_sure(i) {
    printf("a client makes master %d sure\n", i);
    m[i].sure = 1;
    c[1].v[i].heard = 0;
    note_change(i)
}

inline vote_on(j, i, t) {
    printf("SET of client %d arrives at master %d\n", j, i);
    m[i].key = j + 1;
    m[i].key_left = t;
    c[j].v[i].vote = 1
}

inline ask(j, t) {
    if
    :: !c[j].asked ->
        printf("client %d wants a lock of ttl %d\n", j, t);
        c[j].asked = 1;
        c[j].left = t
    :: else
    fi
}

#define may_use(j) (!c[j].asked || c[j].left > 0)
#define acked(i) (c[0].v[i].link == ACKED)

/* G3: client 0 raises the horizon on a quorum before its first SET. */
inline lock_at(i) {
    if
    :: d_step { c[0].allowed && may_use(0) && c[0].v[i].link == UP ->
        ask(0, LONG);
        printf("client 0 raises the horizon of master %d\n", i);
        m[i].horizon = 1;
        c[0].v[i].link = ACKED }
    :: d_step { c[0].left > 0 && acked(i) && acked(0) + acked(1) + acked(2) >= 2 && m[i].key == 0 ->
        vote_on(0, i, LONG) }
    :: d_step { c[0].asked && may_use(1) && c[1].v[i].link == UP && m[i].key == 0 ->
        ask(1, SHORT);
        vote_on(1, i, SHORT) }
    fi
}

inline forget_view(j, i) {
    c[j].v[i].link = DOWN;
#ifndef HEARS_EARLIER
    c[j].v[i].heard = 0
#endif
}

/* A master forgets its keys, and a client marks it. */
inline forget(i) {
    printf("master %d forgets and is marked\n", i);
    forgets++;
    m[i].out = 1;
    m[i].sure = 0;
    m[i].age = 0;
    m[i].limit = NOTHING;
    m[i].horizon = 0;
    m[i].key = 0;
    m[i].key_left = 0;
    m[i].lapsed = ready;
    forget_view(0, i);
    forget_view(1, i);
    note_change(i);
    forgotten = (forgotten > i -> forgotten : i + 1)
}

/* The mark that is on its way arrives. */
inline arrive(i) {
    printf("the mark for master %d arrives\n", i);
    m[i].out = 1;
    m[i].sure = 0;
    m[i].age = stray_age;
    m[i].limit = NOTHING;
    m[i].horizon = 0;
#ifdef HEARS_SINCE_SENT
    c[1].v[i].heard = stray_heard;
    stray_heard = 0;
#else
    c[1].v[i].heard = 0;
#endif
    note_change(i);
    stray = 0;
    stray_age = 0
}

#define may_lose(i) (forgets < FORGETS && forgotten >= i && may_forget(i))

inline master_at(i) {
    if
    :: d_step { may_lose(i) -> forget(i) }
    :: d_step { may_lose(i) && stray == 0 && forgets + 1 < FORGETS ->
        printf("another mark for master %d is on its way\n", i);
        forget(i);
        stray = i + 1 }
    :: d_step { may_lose(i) && stray == i + 1 ->
        forget(i);
        arrive(i) }
#ifdef BLIND_WRITES
    :: d_step { stray == i + 1 -> arrive(i) }
#endif
    :: d_step { !m[i].sure && m[i].age == 0 && testifies(next(i)) && testifies(last(i)) -> make_sure(i) }
    fi
}

inline be_new(i) {
    drop_notes(1, i);
#ifdef FORMER
    c[1].v[i].known = 0;
#endif
    c[1].v[i].heard = 0;
    c[1].v[i].link = DOWN
}

#define less(x) (x > 0 -> x - 1 : 0)

inline tick_master(i) {
    m[i].out = m[i].out && !m[i].sure;
    m[i].age = (!m[i].out -> 0 : (m[i].age < LONG -> m[i].age + 1 : LONG));
    m[i].key = (m[i].key_left > 1 -> m[i].key : 0);
    m[i].key_left = less(m[i].key_left)
}

active proctype world() {
    d_step {
        m[0].sure = 1;
        m[1].sure = 1;
        m[2].sure = 1;
        c[0].longest = 1;
#if defined(FORMER) || defined(REMEMBERS) || defined(BELIEVES_RAISED)
        /* Markers have allowed LONG once. Then they expired, and client 1 has begun to use the masters as new ones. */
        c[0].allowed = 1;
#endif
    }
    do
    :: !may_hold(0) || !may_hold(1) -> break
    :: holds(0) && holds(1) -> printf("both clients hold the lock\n"); assert(false)
    :: holds(0) && (weak(0) || weak(1) || weak(2)) ->
        printf("a marker does not know the ttl of a live lock\n"); assert(false)
    :: atomic { may_hold(0) && may_hold(1) ->
    if
    :: d_step { read_marker(0, 0, true) }
    :: d_step { read_marker(0, 1, true) }
    :: d_step { read_marker(0, 2, true) }
    :: d_step { m[0].limit != ALLOWED -> read_marker(0, 0, false) }
    :: d_step { m[1].limit != ALLOWED -> read_marker(0, 1, false) }
    :: d_step { m[2].limit != ALLOWED -> read_marker(0, 2, false) }
    :: d_step { read_marker(1, 0, true) }
    :: d_step { read_marker(1, 1, true) }
    :: d_step { read_marker(1, 2, true) }
#if RAISERS == 2
    :: d_step { m[0].limit != ALLOWED -> read_marker(1, 0, false) }
    :: d_step { m[1].limit != ALLOWED -> read_marker(1, 1, false) }
    :: d_step { m[2].limit != ALLOWED -> read_marker(1, 2, false) }
#endif
    :: master_at(0)
    :: master_at(1)
    :: master_at(2)
    :: lock_at(0)
    :: lock_at(1)
    :: lock_at(2)
    :: d_step { !c[1].asked ->
        printf("another process is client 1\n");
#ifdef HEARS_SINCE_SENT
        stray_heard = 0;
#endif
        c[1].longest = 0;
        c[1].allowed = 0;
        be_new(0);
        be_new(1);
        be_new(2) }
    :: d_step {
        printf("time passes\n");
        tick_master(0);
        tick_master(1);
        tick_master(2);
        stray = (stray_age < LATE -> stray : 0);
        stray_age = (stray -> stray_age + 1 : 0);
#ifdef HEARS_SINCE_SENT
        stray_heard = (stray -> stray_heard : 0);
#endif
        c[0].left = less(c[0].left);
        c[1].left = less(c[1].left) }
    fi }
    od
}
