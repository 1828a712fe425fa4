/*
 * Keeps what a power cut would take away.
 *
 * Preloaded (LD_PRELOAD) into a process that calls unsynced_begin(), it notes in a journal, before each write to a file
 * below a folder, what stood there; and after each successful fsync, what has become durable. Writes through a
 * descriptor opened with O_SYNC or O_DSYNC are durable once they return. After the process was killed, whoever reads
 * the journal can put back what no sync covered. The journal itself is written before the file, so that it survives a
 * kill at any point.
 *
 * New names are kept alike: a file or folder that was created or renamed is durable once the folder it is in was synced.
 * Removals count as durable at once.
 *
 * What cannot be seen here ends the process rather than being missed: a file mapped shared and writable (except LMDB's
 * lock file, which means nothing to the next process), and calls that no driver of the ledger makes. Descriptors that
 * were duplicated are not followed. See ledger_power_cut.py for the records.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAX_DESCRIPTORS = 1024, MAX_FILES = 1024, MAX_PATH = 4096 };

/* What a record says; the payload follows it. */
enum {
	CREATED = 1,      /* payload: path; number: 1 for a folder */
	OPENED = 2,       /* payload: path of the file with this number */
	WRITES = 3,       /* about to write [offset, offset + length); payload: what stood there, shorter past the end */
	WRITTEN = 4,      /* write `id` is durable: it went through a descriptor that syncs */
	SYNCED = 5,       /* everything of the file up to `id` is durable */
	RESIZES = 6,      /* about to get the length `length` */
	FOLDER_SYNCED = 7, /* payload: path; the names in it up to `id` are durable */
	RENAMES = 8        /* payload: the old path, a zero byte, the new path; within one folder or below it */
};

struct record {
	uint32_t kind;
	uint32_t number; /* of the file */
	uint64_t id;     /* of the change; grows */
	uint64_t offset;
	uint64_t length;
	uint64_t size; /* of the file before the change */
	uint64_t payload;
};

struct descriptor {
	int number; /* of the file; 0 where the descriptor is none of ours */
	int is_folder;
	int syncs;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[MAX_PATH];
static size_t folder_length;
static int journal = -1;
static uint64_t last_id;
static uint64_t writes_left; /* until the process kills itself; 0 for never */
static int files;
static char *paths[MAX_FILES + 1];
static struct descriptor descriptors[MAX_DESCRIPTORS];

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);
	if (!found)
		abort();
	return found;
}

static void give_up(const char *why, const char *path)
{
	dprintf(2, "unsynced_writes: %s: %s\n", why, path);
	abort();
}

static int is_ours(const char *path)
{
	return journal >= 0 && path && !strncmp(path, folder, folder_length) &&
	       (path[folder_length] == '/' || !path[folder_length]);
}

static struct descriptor *of(int fd)
{
	if (journal < 0 || fd < 0 || fd >= MAX_DESCRIPTORS || !descriptors[fd].number)
		return NULL;
	return &descriptors[fd];
}

static void note(uint32_t kind, uint32_t number, uint64_t id, uint64_t offset, uint64_t length, uint64_t size,
		 const void *payload, size_t payload_length)
{
	struct record record = {kind, number, id, offset, length, size, payload_length};
	struct iovec pieces[2] = {{&record, sizeof record}, {(void *)payload, payload_length}};
	ssize_t wanted = sizeof record + payload_length;
	if (syscall(SYS_writev, journal, pieces, 2) != wanted)
		give_up("cannot write the journal", folder);
}

/*
 * Begins to watch a folder; the journal is outside of it. Call it before the folder is used, once in a process. After so
 * many writes the process kills itself, before anything is synced after the last one; 0 for never.
 */
int unsynced_begin(const char *watched, const char *journal_path, int writes)
{
	writes_left = writes;
	if (strlen(watched) >= sizeof folder)
		return -1;
	strcpy(folder, watched);
	folder_length = strlen(folder);
	journal = syscall(SYS_openat, AT_FDCWD, journal_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	return journal < 0 ? -1 : 0;
}

/* Files ------------------------------------------------------------------------------------------------------------ */

static int number_of(const char *path)
{
	for (int number = 1; number <= files; number++)
		if (!strcmp(paths[number], path))
			return number;
	if (files == MAX_FILES)
		give_up("too many files", path);
	paths[++files] = strdup(path);
	note(OPENED, files, 0, 0, 0, 0, path, strlen(path));
	return files;
}

static int opened(int directory, const char *path, int flags, mode_t mode)
{
	if (!is_ours(path))
		return syscall(SYS_openat, directory, path, flags, mode);
	pthread_mutex_lock(&lock);
	struct stat status;
	int is_new = (flags & O_CREAT) && stat(path, &status);
	if (flags & O_TRUNC)
		give_up("opened with O_TRUNC", path);
	if (is_new)
		note(CREATED, 0, ++last_id, 0, 0, 0, path, strlen(path));
	int fd = syscall(SYS_openat, directory, path, flags, mode);
	int error = errno;
	if (fd >= MAX_DESCRIPTORS)
		give_up("too many descriptors", path);
	if (fd >= 0 && !fstat(fd, &status)) {
		descriptors[fd].number = number_of(path);
		descriptors[fd].is_folder = S_ISDIR(status.st_mode);
		descriptors[fd].syncs = !!(flags & O_DSYNC); /* O_SYNC includes it */
	}
	pthread_mutex_unlock(&lock);
	errno = error;
	return fd;
}

#define MODE(flags, mode)                        \
	mode_t mode = 0;                         \
	if ((flags) & (O_CREAT | __O_TMPFILE)) { \
		va_list rest;                    \
		va_start(rest, flags);           \
		mode = va_arg(rest, mode_t);     \
		va_end(rest);                    \
	}

int open(const char *path, int flags, ...)
{
	MODE(flags, mode)
	return opened(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
	MODE(flags, mode)
	return opened(AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...)
{
	MODE(flags, mode)
	return opened(directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...)
{
	MODE(flags, mode)
	return opened(directory, path, flags, mode);
}

int close(int fd)
{
	if (of(fd))
		descriptors[fd].number = 0;
	return syscall(SYS_close, fd);
}

int mkdir(const char *path, mode_t mode)
{
	struct stat status;
	if (is_ours(path) && stat(path, &status)) {
		pthread_mutex_lock(&lock);
		note(CREATED, 1, ++last_id, 0, 0, 0, path, strlen(path));
		pthread_mutex_unlock(&lock);
	}
	return REAL(mkdir)(path, mode);
}

int rename(const char *old, const char *new)
{
	if (is_ours(old)) {
		size_t old_length = strlen(old) + 1, length = old_length + strlen(new);
		char *both = malloc(length + 1);
		struct stat status;
		if (!both || !stat(new, &status))
			give_up("renamed over another file, which is not kept", new);
		strcpy(both, old);
		strcpy(both + old_length, new);
		pthread_mutex_lock(&lock);
		note(RENAMES, 0, ++last_id, 0, 0, 0, both, length);
		pthread_mutex_unlock(&lock);
		free(both);
	}
	return REAL(rename)(old, new);
}

/* Writes ----------------------------------------------------------------------------------------------------------- */

static ssize_t written(int fd, const struct iovec *pieces, int count, off_t offset)
{
	struct descriptor *descriptor = of(fd);
	size_t length = 0;
	for (int piece = 0; piece < count; piece++)
		length += pieces[piece].iov_len;
	pthread_mutex_lock(&lock);
	struct stat status;
	if (fstat(fd, &status))
		give_up("no status", paths[descriptor->number]);
	off_t at = offset;
	if (offset < 0) /* at the descriptor's own offset */
		at = lseek(fd, 0, SEEK_CUR);
	char *before = malloc(length ? length : 1);
	/* The descriptor may be one for writing only. */
	int reading = syscall(SYS_openat, AT_FDCWD, paths[descriptor->number], O_RDONLY | O_CLOEXEC, 0);
	ssize_t stood = before && reading >= 0 ? syscall(SYS_pread64, reading, before, length, at) : -1;
	if (stood < 0)
		give_up("cannot read what is about to be written over", paths[descriptor->number]);
	syscall(SYS_close, reading);
	uint64_t id = ++last_id;
	note(WRITES, descriptor->number, id, at, length, status.st_size, before, stood);
	free(before);
	ssize_t done = offset < 0 ? syscall(SYS_writev, fd, pieces, count)
				  : syscall(SYS_pwritev, fd, pieces, count, (long)offset, 0L);
	int error = errno;
	if (writes_left && !--writes_left)
		raise(SIGKILL);
	if (done >= 0 && descriptor->syncs)
		note(WRITTEN, descriptor->number, id, 0, 0, 0, NULL, 0);
	pthread_mutex_unlock(&lock);
	errno = error;
	return done;
}

ssize_t write(int fd, const void *bytes, size_t length)
{
	struct iovec piece = {(void *)bytes, length};
	return of(fd) ? written(fd, &piece, 1, -1) : syscall(SYS_write, fd, bytes, length);
}

ssize_t writev(int fd, const struct iovec *pieces, int count)
{
	return of(fd) ? written(fd, pieces, count, -1) : syscall(SYS_writev, fd, pieces, count);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset)
{
	struct iovec piece = {(void *)bytes, length};
	return of(fd) ? written(fd, &piece, 1, offset) : syscall(SYS_pwrite64, fd, bytes, length, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset)
{
	return pwrite(fd, bytes, length, offset);
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t offset)
{
	return of(fd) ? written(fd, pieces, count, offset)
		      : syscall(SYS_pwritev, fd, pieces, count, (long)offset, 0L);
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t offset)
{
	return pwritev(fd, pieces, count, offset);
}

static void resizes(int number, const char *path, off_t length)
{
	struct stat status;
	pthread_mutex_lock(&lock);
	if (stat(path, &status) || status.st_size > length)
		give_up("cut short, which is not kept", path);
	note(RESIZES, number, ++last_id, 0, length, status.st_size, NULL, 0);
	pthread_mutex_unlock(&lock);
}

int ftruncate(int fd, off_t length)
{
	if (of(fd))
		resizes(descriptors[fd].number, paths[descriptors[fd].number], length);
	return syscall(SYS_ftruncate, fd, length);
}

int ftruncate64(int fd, off64_t length)
{
	return ftruncate(fd, length);
}

int truncate(const char *path, off_t length)
{
	if (is_ours(path)) {
		pthread_mutex_lock(&lock);
		int number = number_of(path);
		pthread_mutex_unlock(&lock);
		resizes(number, path, length);
	}
	return syscall(SYS_truncate, path, length);
}

int truncate64(const char *path, off64_t length)
{
	return truncate(path, length);
}

/* Syncs ------------------------------------------------------------------------------------------------------------ */

static int synced(int fd, long call)
{
	struct descriptor *descriptor = of(fd);
	if (!descriptor)
		return syscall(call, fd);
	pthread_mutex_lock(&lock);
	uint64_t up_to = last_id; /* what is written while it lasts may miss it */
	pthread_mutex_unlock(&lock);
	int failed = syscall(call, fd);
	int error = errno;
	if (!failed) {
		const char *path = paths[descriptor->number];
		pthread_mutex_lock(&lock);
		if (descriptor->is_folder)
			note(FOLDER_SYNCED, descriptor->number, up_to, 0, 0, 0, path, strlen(path));
		else
			note(SYNCED, descriptor->number, up_to, 0, 0, 0, NULL, 0);
		pthread_mutex_unlock(&lock);
	}
	errno = error;
	return failed;
}

int fsync(int fd)
{
	return synced(fd, SYS_fsync);
}

int fdatasync(int fd)
{
	return synced(fd, SYS_fdatasync);
}

/* What is not seen ------------------------------------------------------------------------------------------------- */

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
	struct descriptor *descriptor = flags & MAP_ANONYMOUS ? NULL : of(fd);
	if (descriptor && (protection & PROT_WRITE) && (flags & MAP_SHARED)) {
		const char *name = strrchr(paths[descriptor->number], '/');
		if (!name || strcmp(name, "/lock.mdb"))
			give_up("mapped shared and writable", paths[descriptor->number]);
	}
	return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
}

void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset)
{
	return mmap(address, length, protection, flags, fd, offset);
}

#define UNSEEN(result, name, path, parameters, arguments)       \
	result name parameters                                  \
	{                                                       \
		if (is_ours(path))                              \
			give_up(#name ", which is not kept", path); \
		return REAL(name) arguments;                    \
	}

UNSEEN(int, link, old, (const char *old, const char *new), (old, new))
UNSEEN(int, creat, path, (const char *path, mode_t mode), (path, mode))

#define UNSEEN_ON(name, fd, parameters, arguments)                                           \
	int name parameters                                                                  \
	{                                                                                    \
		if (of(fd))                                                                  \
			give_up(#name ", which is not kept", paths[descriptors[fd].number]); \
		return REAL(name) arguments;                                                 \
	}

UNSEEN_ON(fallocate, fd, (int fd, int mode, off_t offset, off_t length), (fd, mode, offset, length))
UNSEEN_ON(posix_fallocate, fd, (int fd, off_t offset, off_t length), (fd, offset, length))
