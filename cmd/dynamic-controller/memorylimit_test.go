package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	utilrand "k8s.io/apimachinery/pkg/util/rand"
)

// memoryLimit starts processes with a memory limit similar to that of a container.
type memoryLimit struct {
	*testing.T
	bytes int64
	// cgroup is the directory of a cgroup with the limit, or "" if the test cannot create a cgroup. In that case, a ulimit
	// limits the memory, and GOMEMLIMIT replaces the limit of the cgroup.
	cgroup string
}

func newMemoryLimit(t *testing.T, bytes int64) *memoryLimit {
	t.Helper()
	m := &memoryLimit{T: t, bytes: bytes}
	var err error
	if m.cgroup, err = newMemoryCgroup(bytes); err != nil {
		t.Logf("no cgroup, using ulimit: %v", err)
		return m
	}
	if err := lockPages(t, binary); err != nil {
		t.Logf("the peak memory can include the program's file: %v", err)
	}
	t.Cleanup(func() {
		// The cgroup can still be busy for a moment after its last process has exited.
		eventually(t, func() error { return os.Remove(m.cgroup) })
	})
	return m
}

// lockPages reads a file into the page cache and keeps it there until the test ends. If its pages were evicted, they
// would be charged to the cgroup of the process that reads them next.
func lockPages(t *testing.T, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	data, err := syscall.Mmap(int(file.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("cannot map %s: %w", path, err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(data) }) // also unlocks the pages
	if err := syscall.Mlock(data); err != nil {
		return fmt.Errorf("cannot lock %s in memory: %w", path, err)
	}
	return nil
}

// command returns a command that runs the program with the limit.
func (m *memoryLimit) command(args ...string) *exec.Cmd {
	if m.cgroup != "" {
		const join = `echo $$ > "$0/cgroup.procs" && exec "$@"`
		return exec.Command("/bin/sh", append([]string{"-c", join, m.cgroup, binary}, args...)...)
	}
	const limit = `ulimit -d "$0" && exec "$@"`
	// Unlike a cgroup, ulimit counts memory that the Go runtime has returned to the system.
	const returned = 64 << 20
	cmd := exec.Command("/bin/sh",
		append([]string{"-c", limit, strconv.FormatInt((m.bytes+returned)>>10, 10), binary}, args...)...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("GOMEMLIMIT=%d", m.bytes/10*9))
	return cmd
}

// logPeak logs and returns the peak memory of the processes, or 0 if it is unknown.
func (m *memoryLimit) logPeak(what string) int64 {
	m.Helper()
	for _, file := range []string{"memory.peak", "memory.max_usage_in_bytes"} {
		if data, err := os.ReadFile(filepath.Join(m.cgroup, file)); m.cgroup != "" && err == nil {
			if peak, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil {
				m.Logf("%s: peak memory of the cgroup: %d MiB", what, peak>>20)
				return peak
			}
		}
	}
	return 0
}

// newMemoryCgroup creates a cgroup with the limit below the cgroup of this process. It supports versions 1 and 2.
func newMemoryCgroup(bytes int64) (dir string, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(own)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		fsType, file := "cgroup", "memory.limit_in_bytes"
		if controllers == "" {
			fsType, file = "cgroup2", "memory.max"
		} else if controllers != "memory" {
			continue
		}
		for _, mount := range mountsOf(string(mounts), fsType, controllers) {
			for _, parent := range []string{filepath.Join(mount, path), mount} {
				if dir, err = newCgroup(parent, file, bytes); err == nil {
					return dir, nil
				}
			}
		}
	}
	return "", fmt.Errorf("cannot create a memory cgroup: %w", err)
}

// mountsOf returns the mount points of file systems of the given type that have the controller among their options.
func mountsOf(mounts, fsType, controller string) (found []string) {
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		fields, rest := strings.Fields(before), strings.Fields(after)
		if len(fields) > 4 && len(rest) > 2 && rest[0] == fsType && strings.Contains(rest[2], controller) {
			found = append(found, fields[4])
		}
	}
	return found
}

func newCgroup(parent, file string, bytes int64) (dir string, err error) {
	if _, err := os.Stat(parent); err != nil {
		return "", err
	}
	if file == "memory.max" {
		// This fails if the controller is already enabled or not available. In the latter case, the write below fails, too.
		_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0)
	}
	dir = filepath.Join(parent, "dynamic-controller-test-"+utilrand.String(8))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	// The files of a cgroup cannot be opened with O_TRUNC and O_CREATE.
	limit, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err == nil {
		_, err = limit.WriteString(strconv.FormatInt(bytes, 10))
		_ = limit.Close()
	}
	if err != nil {
		_ = os.Remove(dir)
		return "", err
	}
	return dir, nil
}
