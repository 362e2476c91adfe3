/*
 * floor: measures an acquire and a release whose only costs are those of the kernel and the servers.
 *
 *     cc -O2 -std=c11 -o floor floor.c
 *     floor [options] MASTER...             one run, one JSON line
 *     floor --stdin [options] MASTER...     one run per line of stdin ("cycle 2000", "pipeline 0.5s 1024"), until EOF
 *
 * Theory of operation.  The program sends exactly the same bytes to every master.  So there is one log of commands, as
 * bytes in `stream` and as entries in `ring`.  Each link is only a pair of cursors into the log: how far it has been
 * written, and the command of its next reply.  A reply therefore always votes for the oldest command that its own link
 * has not answered.  However late a reply is, the program never takes it for the reply to a newer command.  The
 * quorum-th good reply decides a command.  A decided SET is followed by its release, and a decided release ends the
 * cycle.  The mode "cycle" runs one cycle at a time.  The mode "pipeline" runs many at once, and writes them in batches
 * of a quarter of the depth or more.
 *
 * The figure is honest because the program assumes nothing.  Each reply, also one after the decision, must be exactly
 * "+OK" or ":1".  A run and its time end when every master has answered every command.  Anything else ends the program
 * with status 1 and a message.
 *
 * It is one file, longer than other files here, so that one command line shows that it has no dependencies.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MAX_MASTERS = 32, MAX_DEPTH = 1 << 16, TOKEN_LENGTH = 32, COMMAND_MAX = 224 };
enum { INBOX = 1 << 16, SILENCE_MS = 5000, RING_MIN = 1 << 16 };

typedef enum { SET, RELEASE } Kind;
static const char *const GOOD[] = {[SET] = "+OK", [RELEASE] = ":1"};

/* The command that compares and deletes: DELIFEQ of Valkey 9, DELEX of Redis 8.4, or a Lua script on any server. */
typedef enum { UNKNOWN, DELIFEQ, DELEX, LUA } Release;
static const char *const RELEASES[] = {"unknown", "delifeq", "delex", "lua"};

/* One connection, as cursors into the log. */
typedef struct {
    const char *address;
    int fd;
    /* The number of bytes of `stream` that the kernel has accepted. */
    size_t written;
    /* The number of answered commands; the next reply belongs to ring[answered]. */
    uint64_t answered;
    /* The number of bytes of an unfinished reply at the front of `inbox`. */
    size_t held;
    char inbox[INBOX];
} Link;

/* One command in the log. */
typedef struct {
    uint32_t slot;
    uint8_t kind;
    uint8_t votes;
} Command;

/* One cycle in flight. */
typedef struct {
    int64_t started_ns;
    /* The command to submit when the slot leaves `ready`. */
    Kind next;
    char key[40];
    char token[TOKEN_LENGTH + 1];
} Slot;

typedef struct {
    const char *mode;
    /* The number of cycles; 0 to run for `seconds`. */
    uint64_t cycles;
    double seconds;
    uint32_t depth;
} Order;

static Link links[MAX_MASTERS];
static struct pollfd polled[MAX_MASTERS];
static int masters, quorum;
static bool script_only, same_key;
static Release release = UNKNOWN;
static char script_sha[41];

static char *stream;
static size_t stream_length;
static Command *ring;
static uint64_t ring_size, submitted;
static Slot *slots;
/* A queue of slots; it contains at most `depth` slots. */
static uint32_t *ready;
static uint64_t ready_head, ready_tail;

static int64_t *samples;
static size_t sample_count, sample_room;
static uint64_t random_state[2], cycle_number, run_id;

static _Noreturn void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("floor: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static void *allocate(void *old, size_t count, size_t size)
{
    void *memory = realloc(old, count * size);
    if (!memory)
        die("out of memory");
    return memory;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* xorshift128+ is enough here: the tokens must differ, but need not be secret. */
static uint64_t random64(void)
{
    uint64_t a = random_state[0], b = random_state[1];
    random_state[0] = b;
    a ^= a << 23;
    random_state[1] = a ^ b ^ (a >> 17) ^ (b >> 26);
    return random_state[1] + b;
}

static void seed(void)
{
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, random_state, sizeof random_state) != sizeof random_state)
        die("/dev/urandom: %s", strerror(errno));
    close(fd);
    random_state[0] |= 1;
    run_id = random64() & 0xffffffff;
}

/* ---- connecting ------------------------------------------------------------------------------------------------ */

static int dial_unix(const char *path)
{
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof where.sun_path)
        die("%s: path too long", path);
    strcpy(where.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&where, sizeof where))
        die("%s: %s", path, strerror(errno));
    return fd;
}

static int dial_tcp(const char *address)
{
    char host[256];
    if (snprintf(host, sizeof host, "%s", address) >= (int)sizeof host)
        die("%s: address too long", address);
    /* A URL may end with the number of the database, 0. */
    host[strcspn(host, "/")] = 0;
    char *colon = strrchr(host, ':');
    if (!colon)
        die("%s: expected host:port, a path or a redis:// or unix:// URL", address);
    *colon = 0;
    struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM};
    int error = getaddrinfo(host, colon + 1, &hints, &found);
    if (error)
        die("%s: %s", address, gai_strerror(error));
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen))
        die("%s: %s", address, strerror(errno));
    freeaddrinfo(found);
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on))
        die("%s: TCP_NODELAY: %s", address, strerror(errno));
    return fd;
}

static const char *after(const char *text, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(text, prefix, length) ? NULL : text + length;
}

/* Call this before the socket becomes non-blocking. */
static void load_script(Link *link)
{
    static const char body[] = "if redis.call('get',KEYS[1])==ARGV[1] "
                               "then return redis.call('del',KEYS[1]) else return 0 end";
    char text[512], reply[64];
    int length = snprintf(text, sizeof text, "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$%zu\r\n%s\r\n",
                          sizeof body - 1, body);
    if (send(link->fd, text, length, MSG_NOSIGNAL) != length)
        die("%s: SCRIPT LOAD: %s", link->address, strerror(errno));
    ssize_t got = recv(link->fd, reply, 47, MSG_WAITALL);
    if (got != 47 || memcmp(reply, "$40\r\n", 5) || (*script_sha && memcmp(script_sha, reply + 5, 40)))
        die("%s: SCRIPT LOAD was answered with %.*s", link->address, (int)(got > 0 ? got : 0), reply);
    memcpy(script_sha, reply + 5, 40);
}

/* Returns whether the server answers ":0" to this command, whose key does not exist. */
static bool knows(Link *link, const char *text)
{
    char reply[256];
    size_t length = strlen(text), held = 0;
    if (send(link->fd, text, length, MSG_NOSIGNAL) != (ssize_t)length)
        die("%s: %s", link->address, strerror(errno));
    do {
        ssize_t got = recv(link->fd, reply + held, sizeof reply - held, 0);
        if (got <= 0)
            die("%s: no answer to a test of its commands", link->address);
        held += got;
    } while (reply[held - 1] != '\n' && held < sizeof reply);
    return held == 4 && !memcmp(reply, ":0\r\n", 4);
}

/* All masters get the same bytes, so the choice must be the same for all. */
static void choose_release(Link *link)
{
    Release found = LUA;
    if (!script_only && knows(link, "*3\r\n$7\r\nDELIFEQ\r\n$5\r\nfloor\r\n$5\r\ntoken\r\n"))
        found = DELIFEQ;
    else if (!script_only && knows(link, "*4\r\n$5\r\nDELEX\r\n$5\r\nfloor\r\n$4\r\nIFEQ\r\n$5\r\ntoken\r\n"))
        found = DELEX;
    if (release != UNKNOWN && found != release)
        die("%s: it releases by %s and the masters before it by %s; use --release=lua",
            link->address, RELEASES[found], RELEASES[release]);
    release = found;
}

static void open_link(const char *address)
{
    if (masters == MAX_MASTERS)
        die("more than %d masters", MAX_MASTERS);
    Link *link = &links[masters];
    const char *rest = after(address, "redis://");
    rest = rest ? rest : after(address, "valkey://");
    const char *path = *address == '/' ? address : after(address, "unix://");
    link->address = address;
    link->fd = path ? dial_unix(path) : dial_tcp(rest ? rest : address);
    load_script(link);
    choose_release(link);
    if (fcntl(link->fd, F_SETFL, O_NONBLOCK))
        die("%s: O_NONBLOCK: %s", address, strerror(errno));
    polled[masters++] = (struct pollfd){.fd = link->fd, .events = POLLIN};
}

/* ---- the log: submit, flush, pump -------------------------------------------------------------------------------- */

static uint64_t slowest_answered(void)
{
    uint64_t least = submitted;
    for (int i = 0; i < masters; i++)
        if (links[i].answered < least)
            least = links[i].answered;
    return least;
}

static size_t command_text(char *out, const Slot *slot, Kind kind)
{
    size_t key = strlen(slot->key);
    int length;
    if (kind == SET)
        length = snprintf(out, COMMAND_MAX,
                          "*6\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%d\r\n%s\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n10000\r\n",
                          key, slot->key, TOKEN_LENGTH, slot->token);
    else if (release == LUA)
        length = snprintf(out, COMMAND_MAX,
                          "*5\r\n$7\r\nEVALSHA\r\n$40\r\n%s\r\n$1\r\n1\r\n$%zu\r\n%s\r\n$%d\r\n%s\r\n",
                          script_sha, key, slot->key, TOKEN_LENGTH, slot->token);
    else if (release == DELEX)
        length = snprintf(out, COMMAND_MAX,
                          "*4\r\n$5\r\nDELEX\r\n$%zu\r\n%s\r\n$4\r\nIFEQ\r\n$%d\r\n%s\r\n",
                          key, slot->key, TOKEN_LENGTH, slot->token);
    else
        length = snprintf(out, COMMAND_MAX, "*3\r\n$7\r\nDELIFEQ\r\n$%zu\r\n%s\r\n$%d\r\n%s\r\n",
                          key, slot->key, TOKEN_LENGTH, slot->token);
    if (length >= COMMAND_MAX)
        die("a command of %d bytes", length);
    return length;
}

static void submit(uint32_t index)
{
    Slot *slot = &slots[index];
    if (slot->next == SET) {
        uint64_t number = same_key ? index : cycle_number++;
        snprintf(slot->key, sizeof slot->key, "floor:%08llx:%llu",
                 (unsigned long long)run_id, (unsigned long long)number);
        snprintf(slot->token, sizeof slot->token, "%016llx%016llx",
                 (unsigned long long)random64(), (unsigned long long)random64());
    }
    stream_length += command_text(stream + stream_length, slot, slot->next);
    ring[submitted++ % ring_size] = (Command){.slot = index, .kind = slot->next};
}

/* Makes one write per master. The bytes that the kernel does not accept wait for POLLOUT. */
static void flush(void)
{
    size_t least = stream_length;
    for (int i = 0; i < masters; i++) {
        Link *link = &links[i];
        if (link->written < stream_length) {
            ssize_t sent = send(link->fd, stream + link->written, stream_length - link->written, MSG_NOSIGNAL);
            if (sent < 0 && errno != EAGAIN && errno != EINTR)
                die("%s: send: %s", link->address, strerror(errno));
            link->written += sent > 0 ? sent : 0;
        }
        polled[i].events = link->written < stream_length ? POLLIN | POLLOUT : POLLIN;
        if (link->written < least)
            least = link->written;
    }
    /* Drop the bytes that all masters have got. */
    if (least == stream_length || least > ring_size * COMMAND_MAX) {
        memmove(stream, stream + least, stream_length - least);
        stream_length -= least;
        for (int i = 0; i < masters; i++)
            links[i].written -= least;
    }
}

static void keep_sample(int64_t ns)
{
    if (sample_count == sample_room) {
        sample_room = sample_room ? sample_room * 2 : 1 << 20;
        samples = allocate(samples, sample_room, sizeof *samples);
        /* Touch the memory now, so that later there are no page faults. */
        memset(samples + sample_count, 0, (sample_room - sample_count) * sizeof *samples);
    }
    samples[sample_count++] = ns;
}

/* Counts a reply. Returns 1 if it ends a cycle, else 0. */
static uint32_t vote(Link *link, const char *line, size_t length)
{
    if (link->answered == submitted)
        die("%s: a reply to no command: %.*s", link->address, (int)length, line);
    Command *command = &ring[link->answered++ % ring_size];
    const char *good = GOOD[command->kind];
    if (length != strlen(good) || memcmp(line, good, length))
        die("%s: expected %s, got %.*s", link->address, good, (int)length, line);
    if (++command->votes != quorum)
        return 0;
    Slot *slot = &slots[command->slot];
    slot->next = command->kind == SET ? RELEASE : SET;
    if (slot->next == SET)
        keep_sample(now_ns() - slot->started_ns);
    ready[ready_tail++ % MAX_DEPTH] = command->slot;
    return slot->next == SET;
}

/* Returns the number of cycles that ended. */
static uint32_t receive(Link *link)
{
    ssize_t got = recv(link->fd, link->inbox + link->held, INBOX - link->held, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0)
        die("%s: %s", link->address, got ? strerror(errno) : "closed by the master");
    char *line = link->inbox, *end = link->inbox + link->held + got, *stop;
    uint32_t ended = 0;
    while ((stop = memchr(line, '\n', end - line))) {
        if (stop == line || stop[-1] != '\r')
            die("%s: a line without its carriage return", link->address);
        ended += vote(link, line, stop - 1 - line);
        line = stop + 1;
    }
    link->held = end - line;
    if (link->held == INBOX)
        die("%s: an endless reply", link->address);
    memmove(link->inbox, line, link->held);
    return ended;
}

static uint32_t pump(void)
{
    int count = poll(polled, masters, SILENCE_MS);
    if (count < 0 && errno != EINTR)
        die("poll: %s", strerror(errno));
    if (count == 0)
        die("no reply for %d ms", SILENCE_MS);
    uint32_t ended = 0;
    for (int i = 0; i < masters && count > 0; i++)
        if (polled[i].revents & ~POLLOUT)
            ended += receive(&links[i]);
    return ended;
}

/* ---- one run --------------------------------------------------------------------------------------------------- */

static void prepare(uint32_t depth)
{
    /* The number of commands by which a master may fall behind. */
    ring_size = 4 * (uint64_t)depth < RING_MIN ? RING_MIN : 4 * (uint64_t)depth;
    ring = allocate(ring, ring_size, sizeof *ring);
    slots = allocate(slots, depth, sizeof *slots);
    ready = allocate(ready, MAX_DEPTH, sizeof *ready);
    stream = allocate(stream, (2 * ring_size + depth) * COMMAND_MAX, 1);
    submitted = stream_length = sample_count = 0;
    ready_head = ready_tail = 0;
    for (int i = 0; i < masters; i++)
        /* drain() has left no link with an outstanding command. */
        links[i].answered = links[i].written = 0;
    for (uint32_t i = 0; i < depth; i++) {
        slots[i].next = SET;
        ready[ready_tail++] = i;
    }
}

/* Submits the ready slots while the ring has room and new cycles may start. Returns the number of started cycles. */
static uint64_t submit_ready(uint64_t may_start)
{
    uint64_t room = ring_size - (submitted - slowest_answered()), started = 0;
    int64_t now = now_ns();
    for (uint64_t count = ready_tail - ready_head; count && room; count--, room--) {
        uint32_t index = ready[ready_head++ % MAX_DEPTH];
        if (slots[index].next == SET) {
            if (started == may_start)
                /* The run is over for this slot. */
                continue;
            slots[index].started_ns = now;
            started++;
        }
        submit(index);
    }
    return started;
}

static double run(const Order *order)
{
    prepare(order->depth);
    int64_t begin = now_ns(), end = order->cycles ? INT64_MAX : begin + (int64_t)(order->seconds * 1e9);
    uint64_t started = 0, in_flight = 0, limit = order->cycles ? order->cycles : UINT64_MAX;
    uint64_t batch = order->depth / 4 ? order->depth / 4 : 1;
    for (;;) {
        bool over = started == limit || (end != INT64_MAX && now_ns() >= end);
        if (ready_tail - ready_head >= batch || slowest_answered() == submitted || over) {
            uint64_t fresh = submit_ready(over ? 0 : limit - started);
            started += fresh;
            in_flight += fresh;
        }
        flush();
        if (!in_flight && slowest_answered() == submitted)
            return (now_ns() - begin) / 1e9;
        in_flight -= pump();
    }
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void report(const Order *order)
{
    double cpu = cpu_seconds(), seconds = run(order);
    cpu = cpu_seconds() - cpu;
    if (order->cycles && sample_count != order->cycles)
        die("%zu cycles ended out of %llu", sample_count, (unsigned long long)order->cycles);
    if (!sample_count)
        die("no cycle ended");
    qsort(samples, sample_count, sizeof *samples, by_value);
    printf("{\"mode\":\"%s\",\"n\":%d,\"release\":\"%s\",\"depth\":%u,\"cycles\":%zu,\"seconds\":%.6f,"
           "\"p50_us\":%.2f,\"p99_us\":%.2f,\"cycles_per_s\":%.1f,\"cpu_s\":%.6f}\n",
           order->mode, masters, RELEASES[release], order->depth, sample_count, seconds,
           samples[sample_count / 2] / 1e3, samples[sample_count * 99 / 100] / 1e3, sample_count / seconds, cpu);
    fflush(stdout);
}

/* "2000" is a number of cycles, "0.5s" is a number of seconds. */
static void read_amount(Order *order, const char *text)
{
    char *rest;
    double value = strtod(text, &rest);
    bool seconds = !strcmp(rest, "s");
    if (rest == text || (*rest && !seconds) || !(value > 0) || value > 1e9 || (!seconds && value < 1))
        die("%s: expected a number of cycles such as 2000, or seconds such as 0.5s", text);
    order->cycles = seconds ? 0 : (uint64_t)value;
    order->seconds = seconds ? value : 0;
}

static void read_mode(Order *order, const char *mode, uint32_t depth)
{
    if (strcmp(mode, "cycle") && strcmp(mode, "pipeline"))
        die("%s: expected cycle or pipeline", mode);
    order->mode = *mode == 'c' ? "cycle" : "pipeline";
    order->depth = *mode == 'c' ? 1 : depth;
}

static uint32_t read_depth(const char *text)
{
    long depth = strtol(text, NULL, 10);
    if (depth < 1 || depth > MAX_DEPTH)
        die("%s: a depth is between 1 and %d", text, MAX_DEPTH);
    return depth;
}

static void obey_stdin(uint32_t depth)
{
    char line[128], mode[16], amount[32], deep[16];
    while (fgets(line, sizeof line, stdin)) {
        Order order = {0};
        int words = sscanf(line, "%15s %31s %15s", mode, amount, deep);
        if (words < 2)
            die("expected MODE AMOUNT [DEPTH], got %s", line);
        read_mode(&order, mode, words == 3 ? read_depth(deep) : depth);
        read_amount(&order, amount);
        report(&order);
    }
}

static _Noreturn void usage(void)
{
    die("usage: floor [--mode=cycle|pipeline] [--cycles=10000 | --seconds=S] [--depth=1024] [--warmup=500]\n"
        "             [--release=native|lua] [--key=distinct|same] [--stdin] MASTER...\n"
        "MASTER is host:port, a path, redis://host:port or unix://path");
}

typedef struct {
    const char *mode, *amount, *warmup;
    char seconds[32];
    uint32_t depth;
    bool from_stdin;
} Options;

static bool read_option(Options *options, const char *text)
{
    const char *value;
    if ((value = after(text, "--mode=")))
        options->mode = value;
    else if ((value = after(text, "--cycles=")))
        options->amount = value;
    else if ((value = after(text, "--seconds=")))
        snprintf(options->seconds, sizeof options->seconds, "%ss", value), options->amount = options->seconds;
    else if ((value = after(text, "--depth=")))
        options->depth = read_depth(value);
    else if ((value = after(text, "--warmup=")))
        options->warmup = value;
    else if (!strcmp(text, "--release=lua") || !strcmp(text, "--release=native"))
        script_only = text[10] == 'l';
    else if (!strcmp(text, "--key=same") || !strcmp(text, "--key=distinct"))
        same_key = text[6] == 's';
    else if (!strcmp(text, "--stdin"))
        options->from_stdin = true;
    else
        return false;
    return true;
}

int main(int count, char **arguments)
{
    Options options = {.mode = "cycle", .amount = "10000", .warmup = "500", .depth = 1024};
    Order order = {0};
    seed();
    for (int i = 1; i < count; i++)
        if (*arguments[i] == '-' && !read_option(&options, arguments[i]))
            usage();
    for (int i = 1; i < count; i++)
        if (*arguments[i] != '-')
            open_link(arguments[i]);
    if (!masters)
        usage();
    quorum = masters / 2 + 1;
    read_mode(&order, options.mode, options.depth);
    if (strcmp(options.warmup, "0")) {
        read_amount(&order, options.warmup);
        run(&order);
    }
    if (options.from_stdin) {
        obey_stdin(options.depth);
        return 0;
    }
    read_amount(&order, options.amount);
    report(&order);
    return 0;
}
