#include "os/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "os/status.h"

int mem_zeroed(size_t count, size_t nbytes, void **out) {
  void *p = calloc(count ? count : 1, nbytes ? nbytes : 1);
  if (!p) return os_fail(LWCC_ERR_SYSTEM, "out of memory: %zu objects of %zu bytes", count, nbytes);
  *out = p;
  return LWCC_OK;
}

int mem_segment_create(const char *label, size_t nbytes, int *fd_out) {
  int fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0)
    return os_fail(LWCC_ERR_SYSTEM,
                   "shared memory: memfd_create is refused (%s); a sandbox or container profile may forbid it",
                   strerror(errno));
  if ((off_t)nbytes < 0 || ftruncate(fd, (off_t)nbytes) != 0) {
    int code =
        os_fail(LWCC_ERR_SYSTEM, "shared memory: cannot make %zu bytes (%s); see ulimit -f and the memory limits",
                nbytes, strerror(errno));
    close(fd);
    return code;
  }
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) !=
      0) { /* F_SEAL_SEAL is not needed: more seals cannot hurt */
    int code = os_fail(LWCC_ERR_SYSTEM, "shared memory: cannot seal a segment (%s)", strerror(errno));
    close(fd);
    return code;
  }
  *fd_out = fd;
  return LWCC_OK;
}

int mem_segment_map(int fd, size_t nbytes, void **out) {
  struct stat st;
  if (fstat(fd, &st) != 0) return os_fail(LWCC_ERR_SYSTEM, "shared memory: fstat failed (%s)", strerror(errno));
  int seals = fcntl(fd, F_GET_SEALS);
  if (st.st_size < 0 || (size_t)st.st_size < nbytes || seals < 0 || !(seals & F_SEAL_SHRINK))
    return os_fail(LWCC_ERR_PROTOCOL,
                   "shared memory: a peer sent a segment of %lld bytes, seals %d; expected %zu, sealed",
                   (long long)st.st_size, seals, nbytes);
  void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (p == MAP_FAILED)
    return os_fail(LWCC_ERR_SYSTEM, "shared memory: cannot map %zu bytes (%s); see ulimit -v", nbytes, strerror(errno));
  *out = p;
  return LWCC_OK;
}

void mem_segment_unmap(void *p, size_t nbytes) {
  munmap(p, nbytes);
}

void mem_segment_discard(void *p, size_t nbytes) {
  if (madvise(p, nbytes, MADV_REMOVE) != 0) memset(p, 0, nbytes); /* then at least the zeros hold */
}

int mem_segment_probe(size_t nbytes) {
  int fd = -1;
  TRY(mem_segment_create("lwcc-probe", nbytes, &fd));
  int err = posix_fallocate(fd, 0, (off_t)nbytes);
  close(fd);
  if (err)
    return os_fail(LWCC_ERR_SYSTEM, "shared memory: no room for %zu bytes (%s); raise the container's memory limit",
                   nbytes, strerror(err));
  return LWCC_OK;
}

int mem_peek(int pid, void *to, uint64_t address, size_t n) {
  for (size_t done = 0; done < n;) {
    struct iovec mine = {(char *)to + done, n - done}, theirs = {(void *)(uintptr_t)(address + done), n - done};
    ssize_t got = process_vm_readv(pid, &mine, 1, &theirs, 1, 0);
    if (got <= 0)
      return os_fail(got < 0 && errno == ESRCH ? LWCC_ERR_PEER_LOST : LWCC_ERR_SYSTEM,
                     "reading %zu bytes from process %d: %s", n - done, pid,
                     got < 0 ? strerror(errno) : "no such memory");
    done += (size_t)got;
  }
  return LWCC_OK;
}
