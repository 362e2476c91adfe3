/* F1 and F2: how masters that have no marker come to be new.

   Each founder has one attempt, with a number of its own. Every client may finish an attempt. Reads and writes arrive at
   any time, in any order, or never; so what somebody has read once counts for ever here, and what somebody may write
   because of it arrives at any time. A lock is one step: it stands on a quorum of masters that vote and have no other
   lock. It ends at any time. */

#define N 3
#ifndef FOUNDERS
#define FOUNDERS 2
#endif
#ifndef FORGETS
#define FORGETS 1
#endif

/* A marker is EMPTY, or the draft of an attempt, or prepared or final by it. A master that was kept out votes AGAIN. */
#define EMPTY 0
#define DRAFT 1
#define PREPARED 4
#define FINAL 7
#define AGAIN 10
#define FORGOT 11

/* Where the draft of a founder for one master is. If it is under way, it replaces what the founder has read, and this
   is added to that. */
#define UNSENT 0
#define ARRIVED 1
#define UNDER_WAY 2

typedef Attempt {
    bit looked[N];     /* its founder has read that the master has no final marker */
    byte draft[N];
    bit begun[N];      /* somebody has read its draft, or that the master is prepared by it */
    bit ready[N]       /* somebody has read that the master is prepared by it, or that its marker is final */
};

Attempt a[FOUNDERS];
byte marker[N];
bit key[N];            /* the master has the key of the lock */
bit live;              /* somebody holds the lock */
byte forgets = 0;

#define is_final(x) (x >= FINAL)
#define any_final (is_final(marker[0]) || is_final(marker[1]) || is_final(marker[2]))
#define votes(i) (marker[i] >= FINAL && marker[i] <= AGAIN && !key[i])
#define all(k, what) (a[k].what[0] && a[k].what[1] && a[k].what[2])

/* A founder replaces the drafts of those with a larger number. It gives up on prepared markers: at any time, or with
   SECOND_LOOK only if their attempt cannot succeed any more. Then no master is kept out that has forgotten nothing. */
#define later_draft(k, x) (x > DRAFT + k && x < PREPARED)
#define prepared(x) (x >= PREPARED && x < FINAL)
#ifdef SECOND_LOOK
#define fits(i, x) (marker[i] == x - 3 || marker[i] == x || marker[i] == x + 3)
#define given_up(x) (prepared(x) && !(fits(0, x) && fits(1, x) && fits(2, x)))
#else
#define given_up(x) (prepared(x))
#endif
#define replaces(k, x) (x == EMPTY || later_draft(k, x) || given_up(x))

#ifdef ONE_STEP
#define may_prepare(k) (1)
#define may_finish(k) (1)
#else
#ifdef PREPARES_EARLY
#define may_prepare(k) (1)
#else
#define may_prepare(k) (all(k, begun))
#endif
#ifdef FINISHES_EARLY
#define may_finish(k) (a[k].ready[0] || a[k].ready[1] || a[k].ready[2])
#else
#define may_finish(k) (all(k, ready))
#endif
#endif
#ifdef ANY_DRAFT
#define is_ready(k, i) (marker[i] >= DRAFT && marker[i] < FINAL)
#else
#define is_ready(k, i) (marker[i] == PREPARED + k)
#endif
#ifdef DRAFTS_AGAIN
#define AFTER_ARRIVAL UNSENT
#else
#define AFTER_ARRIVAL ARRIVED
#endif

inline attempt_at(k, i) {
    if
    :: d_step { !a[k].looked[i] && !is_final(marker[i]) ->
        printf("founder %d finds no final marker on master %d\n", k, i);
        a[k].looked[i] = 1 }
    :: d_step { all(k, looked) && !all(k, begun) && a[k].draft[i] == UNSENT && replaces(k, marker[i]) ->
        printf("founder %d sends a draft to master %d\n", k, i);
        a[k].draft[i] = UNDER_WAY + marker[i] }
    :: d_step { a[k].draft[i] >= UNDER_WAY ->
        printf("the draft of founder %d arrives at master %d\n", k, i);
        marker[i] = (marker[i] == a[k].draft[i] - UNDER_WAY -> DRAFT + k : marker[i]);
        a[k].draft[i] = AFTER_ARRIVAL }
    :: d_step { !a[k].begun[i] && (marker[i] == DRAFT + k || marker[i] == PREPARED + k) ->
        printf("the draft of founder %d is read on master %d\n", k, i);
        a[k].begun[i] = 1 }
    :: d_step { may_prepare(k) && marker[i] == DRAFT + k ->
        printf("master %d is prepared by attempt %d\n", i, k);
        marker[i] = PREPARED + k }
    :: d_step { !a[k].ready[i] && (marker[i] == PREPARED + k || marker[i] == FINAL + k) ->
        printf("master %d is read to be prepared by attempt %d\n", i, k);
        a[k].ready[i] = 1 }
    :: d_step { may_finish(k) && is_ready(k, i) ->
        printf("master %d gets the final marker of attempt %d\n", i, k);
        marker[i] = FINAL + k }
    fi
}

#define finishable(x) (prepared(x) && (marker[0] == x + 3 || marker[1] == x + 3 || marker[2] == x + 3))

inline master_at(i) {
    if
    /* A master that has no final marker beside another that has one, and is not prepared by its attempt, has
       forgotten. */
    :: d_step { any_final && !is_final(marker[i]) && !finishable(marker[i]) ->
        printf("master %d is kept out\n", i);
#if defined(SECOND_LOOK) || defined(HASTY)
        assert(forgets > 0);
#endif
        marker[i] = FORGOT }
    /* It stays out as long as a lock may live that it has forgotten. */
    :: d_step { !live && marker[i] == FORGOT ->
        printf("master %d votes again\n", i);
        marker[i] = AGAIN }
    :: d_step { forgets < FORGETS -> printf("master %d forgets\n", i); forgets++; marker[i] = EMPTY; key[i] = 0 }
#ifndef LASTING_DRAFTS
    :: d_step { marker[i] >= DRAFT && marker[i] < PREPARED ->
        printf("the draft on master %d expires\n", i);
        marker[i] = EMPTY }
#endif
    fi
}

inline grant(x, y) {
    d_step { votes(x) && votes(y) ->
        printf("%d and %d grant the lock\n", x, y);
        assert(!live);
        live = 1;
        key[x] = 1;
        key[y] = 1 }
}

active proctype world() {
end:
    do
    :: attempt_at(0, 0)
    :: attempt_at(0, 1)
    :: attempt_at(0, 2)
    :: attempt_at(1, 0)
    :: attempt_at(1, 1)
    :: attempt_at(1, 2)
#if FOUNDERS == 3
    :: attempt_at(2, 0)
    :: attempt_at(2, 1)
    :: attempt_at(2, 2)
#endif
    :: master_at(0)
    :: master_at(1)
    :: master_at(2)
    :: grant(0, 1)
    :: grant(0, 2)
    :: grant(1, 2)
    :: d_step { live -> printf("the lock runs out\n"); live = 0; key[0] = 0; key[1] = 0; key[2] = 0 }
    od
}
