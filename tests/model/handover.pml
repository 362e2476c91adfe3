/* M1 to M5: how the clients of one list of masters move to another list, although masters forget meanwhile.

   Time passes in ticks, and every counter holds the ticks that are left. SHORT is the default ttl, LONG is the longest
   one. A list of masters is a set of bits. NEW_LIST may share masters with OLD_LIST. The founding of a list is
   one step here (see `founding.pml`), and that of NEW_LIST was before: its masters are pending. A client that finishes a handover does
   the same as a mover that goes on after a crash. */

#ifndef SERVERS
#define SERVERS 3
#endif
#ifndef OLD_LIST
#define OLD_LIST 7
#endif
#ifndef NEW_LIST
#define NEW_LIST 0
#endif
#ifndef MOVERS
#define MOVERS 1
#endif
#ifndef FORGETS
#define FORGETS 1
#endif
#ifndef GRACE
#define GRACE 0        /* for how long a client may not notice that a marker has changed */
#endif
#define SHORT 1
#ifndef LONG
#define LONG 2
#endif
#define NOTHING 0

/* The lists of client 0 and client 1. */
#ifndef FIRST
#define FIRST OLD_LIST
#endif
#ifndef SECOND
#define SECOND NOTHING
#endif

/* What a marker says. Only OLD and FINAL let a master vote: for clients of the old list, and of the new one. */
#define EMPTY 0
#define OLD 1
#define LEFT 2
#define PENDING 3
#define FINAL 4

/* With TARGETS the two movers move to different lists. Then "left" names the list. */
#ifdef TARGETS
#define for_another(k, i) (m[i].mark == LEFT && m[i].to != k)
#else
#define for_another(k, i) 0
#endif

/* What a mover does. It finishes when the move is decided, or when it has seen a final marker. */
#define LEAVES 0
#define WAITS 1
#define FINISHES 2

typedef Master {
    byte mark;
    bit to;            /* the mover whose list it is left for */
    bit sure;          /* it has forgotten nothing, or it is known how long it is kept out */
    byte horizon;
    byte out;          /* how long it is kept out */
    byte closing;      /* how long clients may not notice that it is left */
    byte key;          /* the client that has the lock, from 1; or 0 */
    byte key_left
};

typedef Client {
    byte ttl;          /* of the lock that it wants or holds; or 0 */
    byte left;         /* of its validity, from the first byte of its attempt on */
    bit over;          /* its only attempt is over */
    byte acked;        /* the masters that have acknowledged LONG; all have acknowledged SHORT */
    byte sent;         /* the masters that its SET is on the way to */
    byte yes
};

typedef Mover {
    byte does;
    byte acked;        /* the masters that were read as left, or have acknowledged that */
    byte witnesses;    /* those whose horizon counts */
    byte horizon;      /* the largest of theirs */
    byte wait;
    byte other;        /* the masters whose marker has changed since then */
    byte again;        /* the masters that were read after the wait, and had the same marker */
    byte leaving;      /* the masters that "left" is on its way to */
    byte ending;       /* the masters that "final" is on its way to */
    byte stale         /* the masters whose marker has changed since the mover has read it, before it wrote */
#ifdef BLIND_FINAL
    ;
    byte clean         /* the masters that will be final and sure */
#endif
};

/* A client of the old list (0) or of the new list (1), and what it does about a master that has forgotten. */
typedef Finder {
    byte found;        /* the master, from 1; or 0 */
    bit changed;       /* whether its marker has changed since then */
    byte since;        /* how long ago that was, at most LONG */
    byte seen;         /* the witnesses that it has read */
    byte horizon;      /* the largest of theirs */
    bit to;            /* the list in that marker */
    bit moved          /* it has read a marker that says: left, or final */
};

Master m[SERVERS];
Client c[2];
Mover v[MOVERS];
Finder f[2];
byte forgets = 0;
byte forgotten = 0;    /* the masters that have forgotten */
byte gone = 0;         /* the master that never comes back, as an operator has said; as a bit */
byte decided = 0;      /* the movers that have decided a move, as bits */

#define count(x) (((x) & 1) + (((x) >> 1) & 1) + (((x) >> 2) & 1) + (((x) >> 3) & 1) + (((x) >> 4) & 1) + (((x) >> 5) & 1))
#define quorum(list) (count(list) / 2 + 1)
#define enough(list) (count(list) - quorum(list) + 1)
#define has(set, i) (((set) >> (i)) & 1)
#define list_of(j) (j == 0 -> FIRST : SECOND)
#define larger(a, b) ((a) > (b) -> (a) : (b))
#define there(i) (!has(gone, i))
#define holds(j) (c[j].left > 0 && count(c[j].yes) >= quorum(list_of(j)))
#define plays(j) (list_of(j) != NOTHING && !c[j].over)

/* The marker with which a master votes for a client. */
#define mine(j) (list_of(j) == OLD_LIST -> OLD : FINAL)

/* An unsure master votes when it was made sure. G4 as it was: when its time is over. */
#ifdef TRUSTS_UNSEEN
#define open(i) (m[i].out == 0)
#else
#define open(i) (m[i].out == 0 && m[i].sure)
#endif
#define votes(j, i) (has(list_of(j), i) && m[i].mark == mine(j) && open(i))
#define unnoticed(j, i) (list_of(j) == OLD_LIST && m[i].closing > 0)

/* The text of a marker has changed, so that writes compare in vain. */
inline new_text(i) {
    v[0].stale = v[0].stale | ((v[0].leaving | v[0].ending) & (1 << i));
    v[0].other = v[0].other | (v[0].acked & (1 << i));
#if MOVERS == 2
    v[1].stale = v[1].stale | ((v[1].leaving | v[1].ending) & (1 << i));
    v[1].other = v[1].other | (v[1].acked & (1 << i));
#endif
    f[0].changed = (f[0].found == i + 1 -> 1 : f[0].changed);
    f[1].changed = (f[1].found == i + 1 -> 1 : f[1].changed)
}

inline drop_links(i) {
    c[0].acked = c[0].acked & ~(1 << i);
    c[1].acked = c[1].acked & ~(1 << i)
}

/* Write a marker; the caller sets how long the master is kept out, and its horizon. */
inline write(i, what, is_sure) {
    new_text(i);
#if GRACE
    m[i].closing = (m[i].mark == OLD && open(i) -> GRACE + 1 : m[i].closing);
    if
    :: m[i].closing == 0 -> drop_links(i)
    :: else
    fi;
#else
    drop_links(i);
#endif
    m[i].sure = is_sure;
    m[i].mark = what
}

/* --- clients --- */

inline client_at(j, i) {
    if
    :: d_step { c[j].ttl == LONG && c[j].left == 0 && has(list_of(j), i) && m[i].mark == mine(j) && there(i) &&
                !has(c[j].acked, i) ->
        printf("RAISE of client %d arrives at master %d\n", j, i);
        c[j].acked = c[j].acked | (1 << i);
        if
        :: m[i].horizon < LONG -> m[i].horizon = LONG; new_text(i)
        :: else
        fi }
    :: d_step { c[j].left > 0 && (votes(j, i) || unnoticed(j, i)) && !has(c[j].sent | c[j].yes, i) && there(i) &&
                (c[j].ttl == SHORT || has(c[j].acked, i)) ->
        printf("client %d sends SET to master %d\n", j, i);
        c[j].sent = c[j].sent | (1 << i) }
    :: d_step { has(c[j].sent, i) && there(i) ->
        c[j].sent = c[j].sent & ~(1 << i);
        if
        :: m[i].key == 0 ->
            printf("SET of client %d arrives at master %d: yes\n", j, i);
            m[i].key = j + 1;
            m[i].key_left = c[j].ttl;
            c[j].yes = c[j].yes | (1 << i)
        :: else ->
            printf("SET of client %d arrives at master %d: no\n", j, i)
        fi }
    fi
}

inline client(j) {
    if
    :: d_step { plays(j) && c[j].ttl == 0 ->
        printf("client %d begins to ask for a lock of ttl 1\n", j);
        c[j].ttl = SHORT;
        c[j].left = SHORT }
#if LONG > SHORT
    :: d_step { plays(j) && c[j].ttl == 0 -> printf("client %d wants a lock of ttl 2\n", j); c[j].ttl = LONG }
    :: d_step { c[j].ttl == LONG && c[j].left == 0 && count(c[j].acked) >= quorum(list_of(j)) ->
        printf("client %d begins to ask for a lock of ttl 2\n", j);
        c[j].left = LONG }
#endif
    fi
}

/* --- movers --- */

inline run_again(k) {
    v[k].does = LEAVES;
    v[k].acked = 0;
    v[k].witnesses = 0;
    v[k].horizon = 0;
    v[k].wait = 0;
    v[k].other = 0;
    v[k].again = 0
}

inline finish(k) {
    run_again(k);
    v[k].does = FINISHES
}

inline decide(k) {
    printf("mover %d decides the move\n", k);
    decided = decided | (1 << k);
    finish(k)
}

#ifdef QUORUM_LEFT
#define all_of(set) (count(set) >= quorum(OLD_LIST))
#else
#define all_of(set) (((set) | gone) == (OLD_LIST | gone))
#endif

#ifdef TRUSTS_HORIZONS
#define wait_of(k) (v[k].horizon + GRACE)
#elif defined(NO_WAIT)
#define wait_of(k) 0
#elif defined(NO_GRACE)
#define wait_of(k) (count(v[k].witnesses) >= enough(OLD_LIST) -> v[k].horizon : LONG)
#else
#define wait_of(k) ((count(v[k].witnesses) >= enough(OLD_LIST) -> v[k].horizon : LONG) + GRACE)
#endif

inline note_left(k, i) {
    v[k].acked = v[k].acked | (1 << i);
    if
#ifdef TRUSTS_HORIZONS
    :: true ->
#else
    :: m[i].sure ->
#endif
        v[k].witnesses = v[k].witnesses | (1 << i);
        v[k].horizon = larger(v[k].horizon, m[i].horizon)
    :: else
    fi
}

#ifdef STALE_READS
#define may_read_again(k) (v[k].does == WAITS)
#else
#define may_read_again(k) (v[k].does == WAITS && v[k].wait == 0)
#endif

/* Of two movers to different lists, the one that is first on master 0 goes on. */
#if defined(TARGETS) && !defined(ANY_ORDER)
#define may_leave(k, i) (i == 0 || has(v[k].acked, 0))
#else
#define may_leave(k, i) 1
#endif
#define mixed (m[0].mark == LEFT && ((m[1].mark == LEFT && m[0].to != m[1].to) || (m[2].mark == LEFT && m[0].to != m[2].to)))

inline mover_at(k, i) {
    if
    :: d_step { v[k].does == LEAVES && has(OLD_LIST, i) && there(i) && !has(v[k].acked | v[k].leaving | v[k].ending, i) &&
                may_leave(k, i) ->
        if
#ifndef OVERWRITES
        :: for_another(k, i) -> printf("mover %d reads master %d: left for another list\n", k, i)
#endif
        :: m[i].mark == FINAL -> printf("mover %d reads master %d: final\n", k, i); finish(k)
        :: m[i].mark == LEFT && !for_another(k, i) ->
            printf("mover %d reads master %d: left\n", k, i);
            note_left(k, i)
        :: else ->
            printf("mover %d reads master %d, to write there\n", k, i);
            v[k].leaving = v[k].leaving | (1 << i)
        fi }
    :: d_step { has(v[k].leaving, i) && there(i) ->
        if
        :: !has(v[k].stale, i) ->
            printf("mover %d writes on master %d: left\n", k, i);
            m[i].out = (m[i].mark == EMPTY -> LONG : m[i].out);
            write(i, LEFT, m[i].sure);
#ifdef TARGETS
            m[i].to = k;
#endif
            if
            :: v[k].does == LEAVES -> note_left(k, i)
            :: else
            fi
        :: else -> printf("the write of mover %d on master %d is refused\n", k, i)
        fi;
        v[k].leaving = v[k].leaving & ~(1 << i);
        v[k].stale = v[k].stale & ~(1 << i) }
    :: d_step { may_read_again(k) && has(OLD_LIST, i) && there(i) && !has(v[k].again, i) ->
        if
#ifdef ANY_LEFT
        :: m[i].mark == LEFT ->
#else
        :: m[i].mark == LEFT && !has(v[k].other, i) ->
#endif
            printf("mover %d reads master %d again: left\n", k, i);
            v[k].again = v[k].again | (1 << i)
        :: m[i].mark == FINAL -> printf("mover %d reads master %d again: final\n", k, i); finish(k)
        :: else ->
            printf("mover %d reads master %d again: not as it was\n", k, i);
#ifdef WAITS_ONCE
            write(i, LEFT, 0);
            m[i].out = LONG;
            v[k].again = v[k].again | (1 << i)
#else
            run_again(k)
#endif
        fi }
    :: d_step { v[k].does != FINISHES && has(NEW_LIST & ~OLD_LIST, i) && there(i) && m[i].mark == FINAL ->
        printf("mover %d reads master %d: final\n", k, i);
        finish(k) }
    :: d_step { v[k].does == FINISHES && has(NEW_LIST, i) && there(i) && !has(v[k].leaving | v[k].ending, i) &&
                m[i].mark != FINAL ->
        printf("mover %d reads master %d, to finish there\n", k, i);
#ifdef BLIND_FINAL
        v[k].clean = (v[k].clean & ~(1 << i)) | ((m[i].sure && m[i].mark != OLD) << i);
#endif
        v[k].ending = v[k].ending | (1 << i) }
    :: d_step { has(v[k].ending, i) && there(i) ->
        if
#ifdef BLIND_FINAL
        :: true ->
#else
        :: !has(v[k].stale, i) ->
#endif
            printf("mover %d writes on master %d: final\n", k, i);
#ifdef FINAL_IS_SURE
            m[i].out = 0;
            write(i, FINAL, 1);
#else
            if
#ifdef BLIND_FINAL
            :: has(v[k].clean, i) -> m[i].out = 0; write(i, FINAL, 1)
#endif
            :: m[i].mark == LEFT || m[i].mark == PENDING -> write(i, FINAL, m[i].sure)
            :: else -> m[i].out = LONG; write(i, FINAL, 0)
            fi;
#endif
            m[i].horizon = SHORT
        :: else -> printf("the write of mover %d on master %d is refused\n", k, i)
        fi;
        v[k].ending = v[k].ending & ~(1 << i);
#ifdef BLIND_FINAL
        v[k].clean = v[k].clean & ~(1 << i);
#endif
        v[k].stale = v[k].stale & ~(1 << i) }
    fi
}

inline mover(k) {
    if
    :: d_step { v[k].does == LEAVES && all_of(v[k].acked) ->
        v[k].does = WAITS;
        v[k].wait = wait_of(k);
        printf("mover %d waits for %d\n", k, v[k].wait);
        v[k].witnesses = 0;
        v[k].horizon = 0 }
#ifdef NO_SECOND_READ
    :: d_step { v[k].does == WAITS && v[k].wait == 0 -> decide(k) }
#else
    :: d_step { v[k].does == WAITS && all_of(v[k].again) -> decide(k) }
#endif
    :: d_step { v[k].does != LEAVES || v[k].acked -> printf("mover %d crashes, and runs again\n", k); run_again(k) }
    fi
}

/* --- clients that see a master without its marker --- */

inline end_finding(j) {
    f[j].found = 0;
    f[j].changed = 0;
    f[j].since = 0;
    f[j].seen = 0;
    f[j].horizon = 0;
    f[j].to = 0;
    f[j].moved = 0
}

inline note_witness(j, i, its_horizon) {
    f[j].seen = f[j].seen | (1 << i);
    f[j].horizon = larger(f[j].horizon, its_horizon)
}

#define rest(j, ttl) (ttl > f[j].since -> ttl - f[j].since : 0)
#define found(j, i) (f[j].found == i + 1 && there(i))
#define found_same(j, i) (found(j, i) && !f[j].changed)
/* A client of the old list marks a master as old if it has not read that the list is left; one of the new list marks it
   as final if it has read that the list is final. */
#define may_mark(j, i) (found_same(j, i) && f[j].moved == j)
#define unsure(i, what) (m[i].mark == what && !m[i].sure)

/* Mark a master again (G4) for the clients of a list. */
inline mark_at(j, i, what, list) {
    if
    :: d_step { may_mark(j, i) && m[i].mark == EMPTY ->
        printf("finder %d marks master %d: unsure, for %d\n", j, i, rest(j, LONG));
        m[i].out = rest(j, LONG);
        m[i].horizon = SHORT;
        write(i, what, 0);
        end_finding(j) }
    :: d_step { may_mark(j, i) && count(f[j].seen) >= enough(list) ->
        printf("finder %d marks master %d: sure, for %d\n", j, i, rest(j, f[j].horizon));
        m[i].out = rest(j, f[j].horizon);
        m[i].horizon = larger(m[i].horizon, f[j].horizon);
        write(i, what, 1);
        end_finding(j) }
    :: d_step { may_mark(j, i) && f[j].seen && m[i].mark == what && m[i].out == 0 ->
        printf("finder %d makes master %d sure\n", j, i);
        m[i].horizon = larger(m[i].horizon, f[j].horizon);
        write(i, what, 1);
        end_finding(j) }
    fi
}

inline old_finder_at(i) {
    if
    :: d_step { !f[0].found && has(OLD_LIST, i) && there(i) && (m[i].mark == EMPTY || unsure(i, OLD)) ->
        printf("finder 0 sees that master %d has forgotten\n", i);
        f[0].found = i + 1 }
    :: d_step { f[0].found && f[0].found != i + 1 && has(OLD_LIST, i) && there(i) && !f[0].moved &&
                (m[i].mark == LEFT || m[i].mark == FINAL) ->
        printf("finder 0 reads master %d: left\n", i);
        f[0].to = m[i].to;
        f[0].moved = 1 }
    :: d_step { f[0].found && f[0].found != i + 1 && has(OLD_LIST, i) && there(i) && !f[0].moved &&
                m[i].mark == OLD && m[i].sure && !has(f[0].seen, i) ->
        printf("finder 0 reads master %d\n", i);
        note_witness(0, i, m[i].horizon) }
    :: d_step { f[0].found == i + 1 && f[0].changed -> end_finding(0) }
    :: d_step { found_same(0, i) && f[0].moved ->
        printf("finder 0 copies to master %d: left\n", i);
#ifdef COPIES_SURE
        m[i].out = 0;
        write(i, LEFT, 1);
#else
        m[i].out = (m[i].mark == EMPTY -> LONG : m[i].out);
        write(i, LEFT, 0);
        m[i].to = f[0].to;
#endif
        end_finding(0) }
    :: mark_at(0, i, OLD, OLD_LIST)
    fi
}

inline new_finder_at(i) {
    if
    :: d_step { !f[1].found && has(NEW_LIST, i) && there(i) && (m[i].mark == EMPTY || unsure(i, FINAL)) ->
        printf("finder 1 sees that master %d has forgotten\n", i);
        f[1].found = i + 1 }
    :: d_step { f[1].found && f[1].found != i + 1 && has(NEW_LIST, i) && there(i) && !has(f[1].seen, i) &&
                (m[i].mark == LEFT || m[i].mark == PENDING) && m[i].sure ->
        printf("finder 1 reads master %d: not final\n", i);
        note_witness(1, i, SHORT) }
    :: d_step { f[1].found && f[1].found != i + 1 && has(NEW_LIST, i) && there(i) && !has(f[1].seen, i) &&
                m[i].mark == FINAL && !(f[1].moved && !m[i].sure) ->
        printf("finder 1 reads master %d: final\n", i);
        f[1].moved = 1;
        if
        :: m[i].sure -> note_witness(1, i, m[i].horizon)
        :: else
        fi }
    :: d_step { f[1].found == i + 1 && f[1].changed -> end_finding(1) }
    :: mark_at(1, i, FINAL, NEW_LIST)
    fi
}

/* --- the world --- */

/* Of masters in the same lists, the first one forgets first. */
#define like_last(i) \
    (i > 0 && has(OLD_LIST, i) == has(OLD_LIST << 1, i) && has(NEW_LIST, i) == has(NEW_LIST << 1, i))

inline forget(i) {
    printf("master %d forgets\n", i);
    forgets++;
    forgotten = forgotten | (1 << i);
    new_text(i);
    drop_links(i);
    m[i].mark = EMPTY;
    m[i].to = 0;
    m[i].sure = 0;
    m[i].horizon = 0;
    m[i].out = 0;
    m[i].closing = 0;
    m[i].key = 0;
    m[i].key_left = 0;
    c[0].sent = c[0].sent & ~(1 << i);
    c[1].sent = c[1].sent & ~(1 << i)
}

inline tick_master(i) {
    m[i].out = (m[i].out > 0 -> m[i].out - 1 : 0);
    m[i].key = (m[i].key_left > 1 -> m[i].key : 0);
    m[i].key_left = (m[i].key_left > 0 -> m[i].key_left - 1 : 0)
#if GRACE
    ;
    if
    :: m[i].closing == 1 -> drop_links(i)
    :: else
    fi;
    m[i].closing = (m[i].closing > 0 -> m[i].closing - 1 : 0)
#endif
}

inline tick_client(j) {
    if
    :: c[j].left == 1 ->
        c[j].over = 1;
        c[j].ttl = 0;
        c[j].acked = 0;
        c[j].sent = 0;
        c[j].yes = 0
    :: else
    fi;
    c[j].left = (c[j].left > 0 -> c[j].left - 1 : 0)
}

inline begin(i) {
    m[i].mark = (has(OLD_LIST, i) -> OLD : PENDING);
    m[i].sure = 1;
    m[i].horizon = SHORT
#ifdef MOVED
    ;
    m[i].mark = (has(OLD_LIST, i) -> LEFT : PENDING)
#endif
}

/* All that can happen at one master. */
inline at(i) {
    if
    :: client_at(0, i)
#if SECOND != NOTHING
    :: client_at(1, i)
#endif
    :: mover_at(0, i)
#if MOVERS == 2
    :: mover_at(1, i)
#endif
    :: old_finder_at(i)
#if NEW_LIST != NOTHING
    :: new_finder_at(i)
#endif
    :: d_step { forgets < FORGETS && there(i) && (!like_last(i) || has(forgotten, i - 1)) -> forget(i) }
#ifdef GONE
    :: d_step { gone == 0 && has(OLD_LIST, i) -> printf("master %d is gone\n", i); gone = 1 << i }
#endif
#ifdef LEFT_EXPIRES
    :: d_step { decided && m[i].mark == LEFT && there(i) ->
        printf("the marker of master %d expires\n", i);
        write(i, EMPTY, 0) }
#endif
    fi
}

active proctype world() {
    d_step {
        begin(0);
#if SERVERS > 1
        begin(1);
#endif
#if SERVERS > 2
        begin(2);
#endif
#if SERVERS > 3
        begin(3);
#endif
#if SERVERS > 4
        begin(4);
        begin(5);
#endif
#ifdef MOVED
        decided = 1;
        v[0].does = FINISHES;
#endif
    }
    do
    :: (!plays(0) && !(FIRST == OLD_LIST && SECOND == OLD_LIST)) || (SECOND != NOTHING && !plays(1)) -> break
    :: holds(0) && SECOND != NOTHING && holds(1) -> printf("both clients hold the lock\n"); assert(false)
#ifdef TARGETS
    :: decided == 3 -> printf("both moves were decided\n"); assert(false)
#if FORGETS == 0
    :: mixed -> printf("the list is left for two lists\n"); assert(false)
#endif
#endif
    :: decided && ((FIRST == OLD_LIST && holds(0)) || (SECOND == OLD_LIST && holds(1))) ->
        printf("a client of the old list holds a lock after the move was decided\n");
        assert(false)
    :: atomic { plays(0) && (SECOND == NOTHING || plays(1)) ->
    if
    :: client(0)
#if SECOND != NOTHING
    :: client(1)
#endif
    :: mover(0)
#if MOVERS == 2
    :: mover(1)
#endif
#ifndef NEVER_WIPED
    :: d_step { OLD_LIST == 7 && m[0].mark == EMPTY && m[1].mark == EMPTY && m[2].mark == EMPTY && gone == 0 ->
        printf("a client founds the old list again\n");
        write(0, OLD, 1);
        write(1, OLD, 1);
        write(2, OLD, 1);
        m[0].horizon = SHORT;
        m[1].horizon = SHORT;
        m[2].horizon = SHORT }
#endif
    :: at(0)
#if SERVERS > 1
    :: at(1)
#endif
#if SERVERS > 2
    :: at(2)
#endif
#if SERVERS > 3
    :: at(3)
#endif
#if SERVERS > 4
    :: at(4)
    :: at(5)
#endif
    :: d_step {
        printf("time passes\n");
        tick_master(0);
#if SERVERS > 1
        tick_master(1);
#endif
#if SERVERS > 2
        tick_master(2);
#endif
#if SERVERS > 3
        tick_master(3);
#endif
#if SERVERS > 4
        tick_master(4);
        tick_master(5);
#endif
        tick_client(0);
        tick_client(1);
        v[0].wait = (v[0].wait > 0 -> v[0].wait - 1 : 0);
#if MOVERS == 2
        v[1].wait = (v[1].wait > 0 -> v[1].wait - 1 : 0);
#endif
        f[0].since = (f[0].found && f[0].since < LONG -> f[0].since + 1 : f[0].since);
        f[1].since = (f[1].found && f[1].since < LONG -> f[1].since + 1 : f[1].since) }
    fi }
    od
}
