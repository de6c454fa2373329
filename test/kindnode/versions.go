package main

// Versions of programs that are installed with "go install module/package@version". The checksum database verifies
// them. The versions of the Kubernetes components, etcd, CoreDNS and crictl are in go.mod.
const (
	kubernetesVersion = "v1.37.1"
	containerdVersion = "v2.4.2"
	runcVersion       = "v1.5.2"
	cniVersion        = "v1.9.1"
)

// debianRelease is the last Debian release whose systemd supports both cgroup v1 and v2 without further configuration.
const debianRelease = "bookworm"

// nodePackages are installed in the node in addition to Debian's minimal system.
var nodePackages = []string{
	"systemd", "systemd-sysv", "dbus",
	"iptables", "nftables", "iproute2", "conntrack", "ethtool", "iputils-ping",
	"mount", "kmod", "util-linux", "procps", "hostname", "libcap2-bin",
	"ca-certificates", "curl", "jq",
}

// buildPackages are used to build runc and are removed from the node.
var buildPackages = []string{"libseccomp-dev"}

// maskedUnits are masked because they wait for devices and users that a node does not have, or change settings of the
// machine.
var maskedUnits = []string{
	"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
	"fstrim.timer", "systemd-tmpfiles-setup.service", "systemd-tmpfiles-clean.timer",
	"console-getty.service", "getty.target", "systemd-logind.service",
	"systemd-binfmt.service", "systemd-modules-load.service", "dev-hugepages.mount",
	"sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-fs-fuse-connections.mount",
}
