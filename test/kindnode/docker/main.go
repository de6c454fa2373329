// Docker wraps the docker command for Engines that cannot run privileged containers because they lack some
// capabilities. kind starts its nodes with --privileged. The wrapper replaces this option with the privileges that the
// Engine can grant: every capability of this process, all devices, and no seccomp or AppArmor profile. All other
// arguments are passed on unchanged.
//
// The wrapper must be in a separate directory that is first in kind's PATH.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "docker (without --privileged):", err)
		os.Exit(1)
	}
}

func run() error {
	docker, err := realDocker()
	if err != nil {
		return err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	granted, err := boundingSet(string(status))
	if err != nil {
		return err
	}
	return syscall.Exec(docker, append([]string{"docker"}, unprivileged(os.Args[1:], granted)...), os.Environ())
}

// realDocker returns the first docker in PATH that is not this program.
func realDocker() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	own, err := os.Stat(self)
	if err != nil {
		return "", err
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		file, err := exec.LookPath(filepath.Join(dir, "docker"))
		if err != nil {
			continue
		}
		if info, err := os.Stat(file); err == nil && !os.SameFile(own, info) {
			return file, nil
		}
	}
	return "", errors.New("docker is not in PATH")
}

// unprivileged replaces --privileged in the arguments of "docker run" and "docker create", and removes it from the
// arguments of "docker exec". A process started by "docker exec" already has the capabilities of its container.
func unprivileged(args, capabilities []string) []string {
	if len(args) == 0 {
		return args
	}
	at := slices.Index(args, "--privileged")
	if at < 0 {
		return args
	}
	switch args[0] {
	case "exec":
		return slices.Delete(slices.Clone(args), at, at+1)
	case "run", "create":
		return slices.Replace(slices.Clone(args), at, at+1, privileges(capabilities)...)
	default:
		return args
	}
}

func privileges(capabilities []string) []string {
	options := []string{
		"--security-opt", "seccomp=unconfined",
		"--security-opt", "apparmor=unconfined",
		"--security-opt", "systempaths=unconfined",
		"--device-cgroup-rule", "a *:* rwm",
		"--device", "/dev/kmsg", // Required by kubelet for OOM events.
	}
	for _, capability := range capabilities {
		options = append(options, "--cap-add", capability)
	}
	return options
}

// boundingSet returns the names of the capabilities that are in the bounding set of /proc/self/status and that all
// Engines support. It assumes that the Engine runs on this machine with the same set.
func boundingSet(status string) ([]string, error) {
	for line := range strings.Lines(status) {
		hex, found := strings.CutPrefix(line, "CapBnd:")
		if !found {
			continue
		}
		var set uint64
		if _, err := fmt.Sscanf(strings.TrimSpace(hex), "%x", &set); err != nil {
			return nil, fmt.Errorf("/proc/self/status: %w", err)
		}
		var names []string
		for bit, name := range capabilityNames {
			if set&(1<<bit) != 0 {
				names = append(names, name)
			}
		}
		return names, nil
	}
	return nil, errors.New("/proc/self/status has no CapBnd")
}

// capabilityNames are in the order of linux/capability.h. The list omits later capabilities, which were split from
// SYS_ADMIN and SYSLOG, because Engines before version 23 do not support them.
var capabilityNames = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
	"LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
	"SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
	"SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
	"MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ",
}
