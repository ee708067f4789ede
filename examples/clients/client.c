/* A client of the model server in C, with the sockets of the system alone. docs/how-to/endpoint.md describes the server.
 *
 *     gcc -std=c99 -O2 client.c -o client
 *     ./client /var/lib/edgepack/latency/server.sock defects '{"inputs": [{"name": "x", …}]}'
 *
 * Infers until standard input ends, prints each version that answers, then the numbers of answers and failures. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST = 1 << 20 };

static int connect_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return -1;
    strcpy(address.sun_path, path);
    int peer = socket(AF_UNIX, SOCK_STREAM, 0);
    if (peer >= 0 && connect(peer, (struct sockaddr *)&address, sizeof address) == 0) return peer;
    if (peer >= 0) close(peer);
    return -1;
}

static int send_all(int peer, const char *content, size_t length) {
    while (length) {
        ssize_t sent = send(peer, content, length, MSG_NOSIGNAL);
        if (sent <= 0) return -1;
        content += sent, length -= (size_t)sent;
    }
    return 0;
}

/* Read an answer of HTTP; return its status, and set its body: or -1. */
static int read_answer(int peer, char *answer, char **body) {
    size_t length = 0, whole = 0;
    int status = -1;
    while (!whole || length < whole) {
        ssize_t count = length < MOST - 1 ? recv(peer, answer + length, MOST - 1 - length, 0) : -1;
        if (count <= 0) return -1;
        length += (size_t)count;
        answer[length] = 0;
        char *end = whole ? NULL : strstr(answer, "\r\n\r\n");
        if (!end) continue;
        *body = end + 4;
        for (char *line = answer; line < end; line = strstr(line, "\r\n") + 2)
            if (!strncasecmp(line, "Content-Length:", 15)) whole = strtoul(line + 15, NULL, 10);
        whole += (size_t)(*body - answer);
        if (whole >= MOST || sscanf(answer, "HTTP/1.1 %d", &status) != 1) return -1;
    }
    return status;
}

int main(int count, char **words) {
    static char answer[MOST], head[512], version[128], last[128];
    struct pollfd input = {.fd = 0, .events = POLLIN};
    unsigned long answers = 0, failures = 0;
    char *body = "", *found;
    if (count != 4) return 2;
    int length = snprintf(head, sizeof head,
                          "POST /v2/models/%.100s/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
                          words[2], strlen(words[3]));
    int peer = connect_to(words[1]);
    while (poll(&input, 1, 0) == 0) {
        int is_sent = peer >= 0 && !send_all(peer, head, (size_t)length) && !send_all(peer, words[3], strlen(words[3]));
        int status = is_sent ? read_answer(peer, answer, &body) : -1;
        answers++;
        if (status != 200) {
            failures++;
            fprintf(stderr, "status %d: %.200s\n", status, status > 0 ? body : "no answer");
            sleep(1);
            if (status < 0) close(peer), peer = connect_to(words[1]);
            continue;
        }
        found = strstr(body, "\"model_version\":\"");
        if (found && sscanf(found + 17, "%127[^\"]", version) == 1 && strcmp(version, last)) {
            printf("%s\n", strcpy(last, version));
            fflush(stdout);
        }
    }
    printf("%lu answers, %lu failures\n", answers, failures);
    return failures != 0;
}
