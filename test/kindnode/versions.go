package main

// Versions of what is installed by "go install module/package@version", which the checksum database verifies. The
// versions of Kubernetes' own components, etcd, CoreDNS and crictl are those in go.mod.
const (
	kubernetesVersion = "v1.37.1"
	containerdVersion = "v2.4.2"
	runcVersion       = "v1.5.2"
	cniVersion        = "v1.9.1"
)

// debianRelease is the last release whose systemd runs on cgroup v1 as well as on v2 without further settings.
const debianRelease = "bookworm"

// nodePackages are installed in the node in addition to Debian's minimal system.
var nodePackages = []string{
	"systemd", "systemd-sysv", "dbus",
	"iptables", "nftables", "iproute2", "conntrack", "ethtool", "iputils-ping",
	"mount", "kmod", "util-linux", "procps", "hostname", "libcap2-bin",
	"ca-certificates", "curl", "jq",
}

// buildPackages are used in building runc and removed from the node.
var buildPackages = []string{"libseccomp-dev"}

// uselessUnits would wait for devices and users that a node does not have, or change settings of the machine.
var uselessUnits = []string{
	"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
	"fstrim.timer", "systemd-tmpfiles-setup.service", "systemd-tmpfiles-clean.timer",
	"console-getty.service", "getty.target", "systemd-logind.service",
	"systemd-binfmt.service", "systemd-modules-load.service", "dev-hugepages.mount",
	"sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-fs-fuse-connections.mount",
}
