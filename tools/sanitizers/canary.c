/* Three faults, one for each sanitizer: were they not reported, a clean run would mean nothing. */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

static int shared;

static void * count(void * unused) {
    for (int i = 0; i < 1000; ++i) {
        ++shared;
    }
    return unused;
}

int thread(void) {
    pthread_t one, two;
    pthread_create(&one, NULL, count, NULL);
    pthread_create(&two, NULL, count, NULL);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    return shared;
}

int undefined(int one) { return INT_MAX - 1 + one + one; }

int address(int size) {
    char * bytes = malloc((size_t) size);
    volatile int place = size;
    const int beyond = bytes[place];
    free(bytes);
    return beyond;
}
