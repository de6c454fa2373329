package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// debian creates Debian's root file system. debootstrap verifies the signature of the release and the checksum of every
// package.
func (b *builder) debian(ctx context.Context) error {
	packages := strings.Join(append(append([]string{}, nodePackages...), buildPackages...), ",")
	wanted := debianRelease + " " + packages
	// The stamp is written last. Without it, the directory is incomplete.
	stamp := filepath.Join(b.work, "debian.stamp")
	if made, err := os.ReadFile(stamp); err == nil && string(made) == wanted {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, old := range []string{stamp, b.debianDir()} {
		if err := os.RemoveAll(old); err != nil {
			return err
		}
	}
	const executable, readable = 0o755, 0o644
	if err := os.MkdirAll(b.work, executable); err != nil {
		return err
	}
	if err := (command{args: []string{
		"debootstrap", "--variant=minbase", "--include=" + packages, debianRelease, b.debianDir(), b.mirror,
	}}).run(ctx); err != nil {
		return err
	}
	return os.WriteFile(stamp, []byte(wanted), readable)
}

// nodeFiles creates the node's root file system from Debian's. It omits files that a node does not need, and adds our
// files and binaries.
func (b *builder) nodeFiles(ctx context.Context) error {
	node := b.nodeDir()
	if err := os.RemoveAll(node); err != nil {
		return err
	}
	steps := []command{
		{args: []string{"cp", "--archive", b.debianDir(), node}},
		{args: append([]string{"chroot", node, "dpkg", "--purge"}, buildPackages...)},
		{args: []string{"cp", "--recursive", "--preserve=mode", filepath.Join(b.source, "node") + "/.", node}},
	}
	for _, step := range steps {
		if err := step.run(ctx); err != nil {
			return err
		}
	}
	if err := b.recordPackages(ctx); err != nil {
		return err
	}
	if err := emptyDirs(node, "var/cache/apt", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man",
		"usr/share/locale", "usr/lib/sysctl.d"); err != nil {
		return err
	}
	if err := b.installBinaries(); err != nil {
		return err
	}
	if err := enableUnits(node); err != nil {
		return err
	}
	const readable, executable = 0o644, 0o755
	for _, dir := range []string{"etc/containerd/conf.d", "etc/kubernetes/manifests", "etc/cni/net.d", "kind"} {
		if err := os.MkdirAll(filepath.Join(node, dir), executable); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(node, "kind", "version"), []byte(kubernetesVersion), readable)
}

// recordPackages stores the versions of Debian's packages in the image, because a mirror has only the latest versions
// of a release's packages.
func (b *builder) recordPackages(ctx context.Context) error {
	packages, err := command{args: []string{"chroot", b.nodeDir(), "dpkg-query", "--show"}}.output(ctx)
	if err != nil {
		return err
	}
	const readable = 0o644
	return os.WriteFile(filepath.Join(b.nodeDir(), "kind", "packages"), []byte(packages), readable)
}

func emptyDirs(root string, dirs ...string) error {
	for _, dir := range dirs {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, entry := range entries {
			if err := os.RemoveAll(filepath.Join(root, dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *builder) installBinaries() error {
	install := map[string]string{
		"components":              "usr/bin/components",
		"crictl":                  "usr/local/bin/crictl",
		"containerd":              "usr/local/bin/containerd",
		"ctr":                     "usr/local/bin/ctr",
		"containerd-shim-runc-v2": "usr/local/bin/containerd-shim-runc-v2",
		"runc":                    "usr/local/sbin/runc",
	}
	for _, pkg := range cniPluginPackages {
		name := filepath.Base(pkg)
		install[name] = filepath.Join("opt/cni/bin", name)
	}
	for name, to := range install {
		if err := copyFile(b.bin(name), filepath.Join(b.nodeDir(), to)); err != nil {
			return err
		}
	}
	for _, name := range []string{"kubelet", "kubeadm", "kubectl"} {
		if err := os.Symlink("components", filepath.Join(b.nodeDir(), "usr/bin", name)); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	const executable = 0o755
	if err := os.MkdirAll(filepath.Dir(to), executable); err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, executable)
}

// enableUnits enables the units of the node and masks unneeded units, by creating the same links as systemctl.
func enableUnits(node string) error {
	units := filepath.Join(node, "etc/systemd/system")
	wants := filepath.Join(units, "multi-user.target.wants")
	const executable = 0o755
	if err := os.MkdirAll(wants, executable); err != nil {
		return err
	}
	links := map[string]string{filepath.Join(units, "default.target"): "/lib/systemd/system/multi-user.target"}
	for _, unit := range []string{"containerd.service", "kubelet.service"} {
		links[filepath.Join(wants, unit)] = "/etc/systemd/system/" + unit
	}
	for _, unit := range maskedUnits {
		links[filepath.Join(units, unit)] = "/dev/null"
	}
	for link, target := range links {
		if err := os.RemoveAll(link); err != nil {
			return err
		}
		if err := os.Symlink(target, link); err != nil {
			return err
		}
	}
	return nil
}
