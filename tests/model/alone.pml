/* R1 to R3: a single master that forgets is used on, and its clients ask it whether they still have their locks.

   Time passes in ticks, and every counter holds the ticks that are left. A client sends one command at a time, and asks
   once for the lock. Commands and answers take any time, or are lost. A command that the client no longer waits for may
   still arrive. The pulse ahead of each command shows which memory of the server an answer comes from. The server
   forgets everything, or it goes back to what it had at an earlier moment. */

#ifndef FORGETS
#define FORGETS 2
#endif
#ifndef TTL
#define TTL 2
#endif
#ifndef EXTENSIONS
#define EXTENSIONS 2
#endif

/* Commands. EXTEND asks for the whole ttl again. CONFIRM asks for what is left of the validity, and prolongs nothing.
   Both compare the token. */
#define NONE 0
#define SET 1
#define EXTEND 2
#define CONFIRM 3

typedef Client {
    bit asked;         /* it has sent its only SET */
    byte left;         /* of its validity */
    bit doubt;         /* its lock is in doubt: remaining() is 0 */
    bit broken;        /* another client was granted the lock since it was granted to this one */
    byte asked_in;     /* the memory of the server that it asked */
    byte extensions;
    byte known;        /* the memory of the server that it has read from last */
    byte command;      /* on its way to the server */
    byte answered;     /* the command whose answer is on its way back */
    bit yes;           /* that answer */
    byte memory;       /* the memory of the server that the answer comes from */
    byte life;         /* of the validity that a yes gives, since the command left */
    byte ttl;          /* in the command that is on its way */
    byte stray;        /* a command that the client no longer waits for */
    byte stray_ttl     /* the ttl in it */
};

byte memory = 0;       /* how often the server has forgotten */
byte key = 0;          /* the client that has the lock, from 1; or 0 */
byte key_left = 0;
byte saved = 0;        /* what the server goes back to */
byte saved_left = 0;
Client c[2];

#define certain(j) (c[j].left > 0 && !c[j].doubt)
#define up_to_date(j) (c[j].known == memory)
#define idle(j) (c[j].command == NONE && c[j].answered == NONE)

inline send(j, what, for_time) {
    c[j].command = what;
    c[j].ttl = for_time;
    c[j].life = for_time
}

inline lose(j) {
    c[j].left = 0;
    c[j].doubt = 0;
    c[j].broken = 0
}

inline give(j, time) {
    key = j + 1;
    key_left = time;
    c[1 - j].broken = (c[1 - j].left > 0);
    c[j].yes = 1
}

/* A command arrives. */
inline arrive(j, what, time) {
    printf("command %d of client %d arrives\n", what, j);
    c[j].yes = 0;
    if
    :: what == SET && key == 0 -> give(j, time)
#ifdef RECREATES
    :: what == EXTEND && key == 0 -> give(j, time)
#endif
    :: (what == EXTEND || what == CONFIRM) && key == j + 1 ->
#ifdef GETS
        key_left = (what == EXTEND && key_left < time -> time : key_left);
#else
        key_left = (key_left < time -> time : key_left);
#endif
        c[j].yes = 1
    :: else
    fi
}

/* A reply arrives: of the pulse, and of the command. */
inline reply(j) {
    printf("client %d reads the answer to command %d: %d\n", j, c[j].answered, c[j].yes);
    if
    :: c[j].answered == SET ->
        /* The lock was asked for after the handshake, or its vote does not count. */
        c[j].left = (c[j].yes && c[j].memory == c[j].asked_in -> c[j].life : 0)
    :: c[j].answered != SET && !c[j].yes -> lose(j)
    :: c[j].answered == CONFIRM && c[j].yes && c[j].memory == c[j].known ->
        c[j].doubt = 0
    :: c[j].answered == EXTEND && c[j].yes && c[j].memory == c[j].known && !c[j].doubt ->
        c[j].left = c[j].life
    :: else
    fi;
#ifndef NO_DOUBT
    c[j].doubt = (c[j].left > 0 && c[j].answered != SET && c[j].memory != c[j].known -> 1 : c[j].doubt);
#endif
    c[j].known = c[j].memory;
    c[j].answered = NONE;
    c[j].yes = 0;
    c[j].life = 0;
    c[j].memory = 0
}

inline client(j) {
    if
    :: d_step { !c[j].asked && (j == 0 || c[0].asked) ->
        printf("client %d sends SET\n", j);
        c[j].asked = 1;
        c[j].known = memory;
        c[j].asked_in = memory;
        send(j, SET, TTL) }
    :: d_step { idle(j) && certain(j) && c[j].extensions < EXTENSIONS ->
        printf("client %d sends EXTEND\n", j);
        c[j].extensions++;
        send(j, EXTEND, TTL) }
    :: d_step { idle(j) && c[j].left > 0 && c[j].doubt ->
        printf("client %d sends CONFIRM\n", j);
        send(j, CONFIRM, c[j].left) }
    :: d_step { c[j].left > 0 && c[j].answered == NONE && !up_to_date(j) ->
        printf("client %d reads the marker, with a command for another lock\n", j);
#ifndef NO_DOUBT
        c[j].doubt = 1;
#endif
        c[j].known = memory }
    :: d_step { c[j].command != NONE ->
        arrive(j, c[j].command, c[j].ttl);
        if
        :: c[j].command != SET && c[j].yes && c[j].broken ->
            printf("a client gets back a lock that another one had\n");
            assert(false)
        :: else
        fi;
        c[j].answered = c[j].command;
        c[j].memory = memory;
        c[j].command = NONE;
        c[j].ttl = 0 }
    :: d_step { c[j].answered != NONE -> reply(j) }
    :: d_step { c[j].answered != NONE || (c[j].command != NONE && c[j].stray == NONE) ->
        printf("client %d waits no longer\n", j);
        c[j].stray = (c[j].command != NONE -> c[j].command : c[j].stray);
        c[j].stray_ttl = (c[j].command != NONE -> c[j].ttl : c[j].stray_ttl);
        c[j].command = NONE;
        c[j].ttl = 0;
        c[j].answered = NONE;
        c[j].yes = 0;
        c[j].life = 0;
        c[j].memory = 0 }
    :: d_step { c[j].stray != NONE ->
        arrive(j, c[j].stray, c[j].stray_ttl);
        c[j].yes = 0;
        c[j].stray = NONE;
        c[j].stray_ttl = 0 }
    :: d_step { idle(j) && certain(j) && key == j + 1 ->
        printf("client %d releases the lock\n", j);
        key = 0;
        key_left = 0;
        lose(j) }
    fi
}

#define less(x) (x > 0 -> x - 1 : 0)

inline tick_client(j) {
    c[j].left = less(c[j].left);
    c[j].life = less(c[j].life);
    if
    :: c[j].left == 0 -> lose(j)
    :: else
    fi
}

/* A key that a client believes in stands on the server that it has read from, for as long as it believes. */
#define outlives(j) (certain(j) && up_to_date(j) && !(key == j + 1 && key_left >= c[j].left))

active proctype world() {
end:
    do
    :: certain(0) && certain(1) && up_to_date(0) && up_to_date(1) -> printf("both hold the lock\n"); assert(false)
    :: outlives(0) || outlives(1) -> printf("a client believes for longer than the key lives\n"); assert(false)
    :: atomic { true ->
    if
    :: client(0)
    :: client(1)
    :: d_step { saved != key || saved_left != key_left ->
        printf("the server saves its data\n");
        saved = key;
        saved_left = key_left }
    :: d_step { memory < FORGETS ->
        printf("the server forgets everything\n");
        memory++;
        key = 0;
        key_left = 0;
        saved = 0;
        saved_left = 0 }
    :: d_step { memory < FORGETS && saved ->
        printf("the server goes back to what it has saved\n");
        memory++;
        key = saved;
        key_left = saved_left }
    :: d_step {
        printf("time passes\n");
        key = (key_left > 1 -> key : 0);
        key_left = less(key_left);
        saved = (saved_left > 1 -> saved : 0);
        saved_left = less(saved_left);
        tick_client(0);
        tick_client(1) }
    fi }
    od
}
