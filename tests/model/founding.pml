/* F1 and F2: how masters that have no marker come to be new.

   Each founder is one attempt of one client, with a number of its own, from 1. It may take any time: its reads and
   writes arrive in any order with those of the others. A lock is one step here: it stands on a quorum of masters that
   vote and have no other lock. It ends at any time. */

#define N 3
#ifndef FOUNDERS
#define FOUNDERS 2
#endif
#ifndef FORGETS
#define FORGETS 1
#endif

/* A marker is EMPTY, the number of a draft, NEW or FORGOT. UNREAD is what a founder knows at first. */
#define EMPTY 0
#define NEW 10
#define FORGOT 11
#define UNREAD 12

typedef Founder {
    byte read[N];      /* what it has read last */
    bit drafting[N];   /* its draft is on its way, and replaces what was read */
    bit drafted[N];    /* its draft was written: it is never written again on that master */
    bit confirmed[N];  /* its draft was read when all of its drafts had been written */
    bit final[N];      /* its final marker is on its way */
    bit over
};

Founder f[FOUNDERS];
byte marker[N];
bit key[N];            /* the master has the key of the lock */
bit live;              /* somebody holds the lock */
byte forgets = 0;

#define is_draft(x) (x >= 1 && x <= FOUNDERS)
#define is_final(x) (x == NEW || x == FORGOT)
#define any_final (is_final(marker[0]) || is_final(marker[1]) || is_final(marker[2]))
#define free(i) (marker[i] == NEW && !key[i])
#define all_read(j) (f[j].read[0] != UNREAD && f[j].read[1] != UNREAD && f[j].read[2] != UNREAD)
#define all(j, what) (f[j].what[0] && f[j].what[1] && f[j].what[2])

/* Of two drafts the one with the smaller number stays. */
#define replaces(j, i) (f[j].read[i] == EMPTY || (is_draft(f[j].read[i]) && f[j].read[i] > j + 1))

#ifdef CONFIRMS_EARLY
#define may_confirm(j, i) (f[j].drafted[i])
#else
#define may_confirm(j, i) (all(j, drafted))
#endif

inline founder_at(j, i) {
    if
    :: d_step { !f[j].over && !f[j].drafting[i] && !all(j, drafted) && f[j].read[i] != marker[i] ->
        printf("founder %d reads master %d\n", j + 1, i);
        if
        :: is_final(marker[i]) -> f[j].over = 1
        :: else -> f[j].read[i] = marker[i]
        fi }
#ifdef ONE_STEP
    :: d_step { !f[j].over && all_read(j) && f[j].read[i] == EMPTY && !f[j].final[i] && !f[j].drafted[i] ->
        f[j].final[i] = 1 }
    :: d_step { f[j].final[i] ->
        printf("the final marker of founder %d arrives at master %d\n", j + 1, i);
        f[j].final[i] = 0;
        f[j].drafted[i] = 1;
        marker[i] = (marker[i] == EMPTY -> NEW : marker[i]) }
#else
#ifdef DRAFTS_AGAIN
    :: d_step { !f[j].over && all_read(j) && replaces(j, i) && !f[j].drafting[i] ->
#else
    :: d_step { !f[j].over && all_read(j) && replaces(j, i) && !f[j].drafting[i] && !f[j].drafted[i] ->
#endif
        f[j].drafting[i] = 1 }
    :: d_step { f[j].drafting[i] ->
        printf("the draft of founder %d arrives at master %d\n", j + 1, i);
        f[j].drafting[i] = 0;
        if
        :: marker[i] == f[j].read[i] -> marker[i] = j + 1; f[j].drafted[i] = 1
        :: else
        fi }
    :: d_step { !f[j].over && may_confirm(j, i) && !f[j].confirmed[i] ->
        printf("founder %d reads master %d again\n", j + 1, i);
        if
        :: marker[i] == j + 1 -> f[j].confirmed[i] = 1
        :: else -> f[j].over = 1
        fi }
    :: d_step { !f[j].over && all(j, confirmed) ->
        printf("founder %d has all drafts\n", j + 1);
        f[j].final[0] = 1;
        f[j].final[1] = 1;
        f[j].final[2] = 1;
        f[j].over = 1 }
    :: d_step { f[j].final[i] ->
        printf("the final marker of founder %d arrives at master %d\n", j + 1, i);
        if
#ifdef ANY_DRAFT
        :: is_draft(marker[i]) -> marker[i] = NEW
#else
        :: marker[i] == j + 1 -> marker[i] = NEW
#endif
        :: else
        fi;
        f[j].final[i] = 0 }
#endif
    fi
}

inline master_at(i) {
    if
    /* A master without a final marker, beside one that has one, is a forgetful one. */
    :: d_step { any_final && !is_final(marker[i]) ->
        printf("master %d is kept out\n", i);
        marker[i] = FORGOT }
    /* It stays out as long as a lock may live that it has forgotten. */
    :: d_step { !live && marker[i] == FORGOT ->
        printf("master %d votes again\n", i);
        marker[i] = NEW }
    :: d_step { forgets < FORGETS -> printf("master %d forgets\n", i); forgets++; marker[i] = EMPTY; key[i] = 0 }
#ifndef LASTING_DRAFTS
    :: d_step { is_draft(marker[i]) -> printf("the draft on master %d expires\n", i); marker[i] = EMPTY }
#endif
    fi
}

inline grant(a, b) {
    d_step { free(a) && free(b) ->
        printf("%d and %d grant the lock\n", a, b);
        assert(!live);
        live = 1;
        key[a] = 1;
        key[b] = 1 }
}

active proctype world() {
    byte i;
    byte k;
    for (i : 0 .. FOUNDERS - 1) {
        for (k : 0 .. N - 1) { f[i].read[k] = UNREAD }
    }
    i = 0;
    k = 0;
end:
    do
    :: founder_at(0, 0)
    :: founder_at(0, 1)
    :: founder_at(0, 2)
    :: founder_at(1, 0)
    :: founder_at(1, 1)
    :: founder_at(1, 2)
#if FOUNDERS == 3
    :: founder_at(2, 0)
    :: founder_at(2, 1)
    :: founder_at(2, 2)
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
