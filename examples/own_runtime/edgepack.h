/* Run the active model of a device with a runtime of your own. C99 and Linux, no library.
 *
 * Include this file first. docs/how-to/own-runtime.md explains the calls, camera.c shows them. A struct
 * edgepack belongs to one process and one model; threads share it under a lock. edgepack_ask starts
 * `edgepack-agent env` ($EDGEPACK_AGENT env). Of the other calls, edgepack_end waits up to
 * 30 ms, and edgepack_close up to 100 ms, while the agent's socket is full. */
#ifndef EDGEPACK_H
#define EDGEPACK_H
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define EDGEPACK_FIELDS(X) X(name, NAME, 101) X(digest, DIGEST, 66) X(version, VERSION, 128) \
    X(variant, VARIANT, 101) X(path, PATH, 4096) X(provider, PROVIDER, 101) X(device, DEVICE, 16) \
    X(library, LIBRARY, 4096) X(options, OPTIONS, 8192) X(session_options, SESSION_OPTIONS, 8192) \
    X(state_dir, STATE_DIR, 4096)
#define EDGEPACK_MEMBER(field, key, size) char field[size];
#define EDGEPACK_PRINT(field, key, size) " \"$EDGEPACK_MODEL_" #key "\""
#define EDGEPACK_LINE(field, key, size) {model->field, size},
struct edgepack_model { EDGEPACK_FIELDS(EDGEPACK_MEMBER) }; /* Options are JSON. */
enum edgepack_outcome { EDGEPACK_DONE, EDGEPACK_FAILED, EDGEPACK_NOT_FINITE };
struct edgepack {
    struct edgepack_model model; /* The release that runs. */
    char opening[66], trouble[400];
    double pending_ms[256], sent_at, running_at, insisted_at;
    int pending, failures, not_finite, running, told_running, watch, changed, closed;
    long long lost;
};

static inline double edgepack_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Ask for the serving release; return 0, or -1: the agent's message is on standard error. */
static inline int edgepack_ask(const char *name, struct edgepack_model *model) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    struct { char *text; int size; } lines[] = {EDGEPACK_FIELDS(EDGEPACK_LINE)};
    char command[1024], last[8] = "";
    FILE *answer;
    if (strlen(name) > 100 || strchr("-.", *name) || name[strspn(name, allowed)]) return -1;
    snprintf(command, sizeof command, "v=$(${EDGEPACK_AGENT:-edgepack-agent} env %s) && eval \"$v\" && "
             "printf '%%s\\n'" EDGEPACK_FIELDS(EDGEPACK_PRINT) " end", name);
    if (!(answer = popen(command, "r"))) return -1;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        if (!fgets(lines[i].text, lines[i].size, answer)) *lines[i].text = 0;
        lines[i].text[strcspn(lines[i].text, "\n")] = 0;
    }
    int is_whole = fgets(last, sizeof last, answer) && !strcmp(last, "end\n");
    return pclose(answer) == 0 && is_whole ? 0 : -1;
}

/* Report what is pending; return 0, or -1 if the agent cannot take it now, so that it stays pending. Call this
 * each second from a timer, if you have one: then a hang of a fast model is noticed, too. */
static inline int edgepack_report(struct edgepack *e) {
    static const char *const folders[] = {"/latency", ""};
    char text[12288], folder[4200];
    int is_sent = 0, peer = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int at = snprintf(text, sizeof text, "{\"v\":1,\"model\":\"%s\",\"digest\":\"%s\",\"variant\":\"%s\","
        "\"opening\":\"%s\",\"failures\":%d,\"not_finite\":%d,\"lost\":%lld,\"trouble\":\"%s\",\"closed\":%s",
        e->model.name, e->model.digest, e->model.variant, e->opening, e->failures, e->not_finite, e->lost,
        e->trouble, e->closed ? "true" : "false");
    e->sent_at = edgepack_now();
    if (e->running) at += snprintf(text + at, 40, ",\"running_s\":%d", (int)(e->sent_at - e->running_at));
    for (int i = 0; i < e->pending; i++) { /* Integers: the comma of a locale would be no JSON. */
        long long ns = (long long)(e->pending_ms[i] * 1e6);
        const char *begin = i ? "," : ",\"latencies_ms\":[";
        at += snprintf(text + at, 60, "%s%lld.%06lld", begin, ns / 1000000, ns % 1000000);
    }
    at += snprintf(text + at, 4, e->pending ? "]}" : "}");
    for (int i = errno = 0; i < 2 && !is_sent && peer >= 0 && errno != EAGAIN; i++) {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        snprintf(folder, sizeof folder, "%s%s", e->model.state_dir, folders[i]);
        int place = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* A socket's own path is short. */
        if (place < 0) continue;
        snprintf(to.sun_path, sizeof to.sun_path, "/proc/self/fd/%d/applications.sock", place);
        is_sent = sendto(peer, text, (size_t)at, MSG_DONTWAIT, (struct sockaddr *)&to, sizeof to) == at;
        close(place);
    }
    if (peer >= 0) close(peer);
    if (!is_sent) return -1;
    e->pending = e->failures = e->not_finite = 0, e->lost = 0, *e->trouble = 0;
    e->told_running = e->running > 0;
    return 0;
}

/* Report, and wait up to 10 ms for each further try while the agent's socket is full. */
static inline void edgepack_insist(struct edgepack *e, int tries) {
    struct timespec pause = {0, 10000000};
    while (edgepack_report(e) && errno == EAGAIN && tries-- > 0) nanosleep(&pause, NULL);
}

/* Say which release is being opened: if the process dies or hangs now, that release is suspect. */
static inline void edgepack_opening(struct edgepack *e, const struct edgepack_model *model) {
    strcpy(e->opening, model->digest);
    edgepack_report(e);
}

/* Register this process, which opens its first release now. */
static inline void edgepack_start(struct edgepack *e, const struct edgepack_model *model) {
    char folder[4300];
    memset(e, 0, sizeof *e);
    e->model = *model, *e->model.digest = 0;
    snprintf(folder, sizeof folder, "%s/models/%s", model->state_dir, model->name);
    e->watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    inotify_add_watch(e->watch, folder, IN_MOVED_TO | IN_CLOSE_WRITE);
    e->changed = 1; /* Maybe, since edgepack_ask. */
    edgepack_opening(e, model);
}

/* Say that a release is open, and runs from now on. */
static inline void edgepack_serves(struct edgepack *e, const struct edgepack_model *model) {
    if (*e->model.digest && edgepack_report(e)) e->lost += e->pending + e->failures;
    e->pending = e->failures = e->not_finite = 0;
    e->model = *model, *e->opening = 0;
    edgepack_report(e);
    e->sent_at = 0; /* The first inference of a release is always announced. */
}

/* Say why a release cannot be opened; the release before goes on. */
static inline void edgepack_trouble(struct edgepack *e, const char *why) {
    if (!*e->model.digest) strcpy(e->model.digest, e->opening);
    *e->opening = 0;
    snprintf(e->trouble, sizeof e->trouble, "%s", why);
    for (char *c = e->trouble; *c; c++) if (*c < ' ' || *c > '~' || strchr("\"\\", *c)) *c = '?';
    edgepack_report(e);
}

/* Return whether another release may serve; a read of a microsecond. Then call edgepack_ask. */
static inline int edgepack_changed(struct edgepack *e) {
    struct inotify_event event;
    char found[4096];
    int is_changed = e->changed;
    for (ssize_t length; (length = read(e->watch, found, sizeof found)) > 0;)
        for (ssize_t at = 0; at < length; at += (ssize_t)(sizeof event + event.len)) {
            memcpy(&event, found + at, sizeof event);
            is_changed |= event.len && !strcmp(found + at + sizeof event, "active.json");
        }
    e->changed = 0;
    return is_changed;
}

/* Begin an inference; pass the result to edgepack_end. */
static inline double edgepack_begin(struct edgepack *e) {
    double now = edgepack_now();
    if (e->running++ == 0) e->running_at = now;
    if (now - e->sent_at >= 0.1) edgepack_report(e);
    return now;
}

/* End an inference. */
static inline void edgepack_end(struct edgepack *e, double began, enum edgepack_outcome outcome) {
    double now = edgepack_now();
    e->running--, e->running_at = now;
    if (outcome == EDGEPACK_FAILED) e->failures < 1000 ? e->failures++ : (int)e->lost++;
    else if (e->pending == 256) e->lost++;
    else e->pending_ms[e->pending++] = (now - began) * 1e3, e->not_finite += outcome == EDGEPACK_NOT_FINITE;
    int waits = now - e->insisted_at >= 1.0; /* An agent that is stopped must not slow inferences down. */
    if (e->told_running) edgepack_insist(e, waits ? 3 : 0); /* Else the agent believes in a hang. */
    if (e->told_running && waits) e->insisted_at = now;
    else if (e->pending == 256 || now - e->sent_at >= 1.0) edgepack_report(e);
}

/* Close the model: a process that ends without this call has died. */
static inline void edgepack_close(struct edgepack *e) {
    e->closed = 1, e->running = 0;
    edgepack_insist(e, 10);
    close(e->watch);
}
#endif
