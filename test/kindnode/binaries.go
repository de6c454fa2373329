package main

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
)

// goBuild builds a program of this module. It disables cgo, so that the binary is linked statically.
func (b *builder) goBuild(ctx context.Context, name, ldflags, pkg string) error {
	return command{
		dir:  b.source,
		env:  []string{"CGO_ENABLED=0"},
		args: []string{"go", "build", "-buildvcs=false", "-ldflags", "-s -w " + ldflags, "-o", b.bin(name), pkg},
	}.run(ctx)
}

// goInstall installs a program of another module at the given version.
func (b *builder) goInstall(ctx context.Context, env []string, flags []string, pkg, version string) error {
	args := append([]string{"go", "install", "-buildvcs=false", "-trimpath"}, flags...)
	return command{
		dir:  b.work, // A directory outside this module.
		env:  append([]string{"GOBIN=" + filepath.Join(b.work, "bin")}, env...),
		args: append(args, pkg+"@"+version),
	}.run(ctx)
}

func (b *builder) components(ctx context.Context) error {
	const pkg = "k8s.io/component-base/version"
	var major, minor int
	if _, err := fmt.Sscanf(kubernetesVersion, "v%d.%d.", &major, &minor); err != nil {
		return err
	}
	ldflags := fmt.Sprintf("-X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]d -X %[1]s.gitMinor=%[4]d "+
		"-X %[1]s.gitTreeState=clean", pkg, kubernetesVersion, major, minor)
	return b.goBuild(ctx, "components", ldflags, "./components")
}

func (b *builder) crictl(ctx context.Context) error {
	return b.goBuild(ctx, "crictl", "", "sigs.k8s.io/cri-tools/cmd/crictl")
}

func (b *builder) containerd(ctx context.Context) error {
	const module = "github.com/containerd/containerd/v2"
	flags := []string{
		"-tags", "no_btrfs,no_devmapper,no_zfs",
		"-ldflags", "-s -w -X " + module + "/version.Version=" + containerdVersion,
	}
	for _, name := range []string{"containerd", "ctr", "containerd-shim-runc-v2"} {
		if err := b.goInstall(ctx, []string{"CGO_ENABLED=0"}, flags, module+"/cmd/"+name, containerdVersion); err != nil {
			return err
		}
	}
	return nil
}

// cniPluginPackages are the plugins used by components/cni.go and containerd.
var cniPluginPackages = []string{"main/ptp", "main/loopback", "ipam/host-local", "meta/portmap"}

func (b *builder) cniPlugins(ctx context.Context) error {
	const module = "github.com/containernetworking/plugins"
	flags := []string{"-ldflags", "-s -w -X " + module + "/pkg/utils/buildversion.BuildVersion=" + cniVersion}
	for _, pkg := range cniPluginPackages {
		plugin := path.Join(module, "plugins", pkg)
		if err := b.goInstall(ctx, []string{"CGO_ENABLED=0"}, flags, plugin, cniVersion); err != nil {
			return err
		}
	}
	return nil
}

// runc builds runc with cgo, because the code that runc runs first in a container is written in C. runc is linked with
// Debian's libseccomp. Otherwise, Pods could not use the seccomp profile that the Pod Security level "restricted"
// requires.
func (b *builder) runc(ctx context.Context) error {
	packageConfigs, err := filepath.Glob(filepath.Join(b.debianDir(), "usr/lib/*/pkgconfig"))
	if err != nil || len(packageConfigs) == 0 {
		return fmt.Errorf("no libseccomp-dev in %s: %w", b.debianDir(), err)
	}
	env := []string{
		"CGO_ENABLED=1",
		"PKG_CONFIG_LIBDIR=" + packageConfigs[0],
		"PKG_CONFIG_SYSROOT_DIR=" + b.debianDir(),
	}
	flags := []string{"-tags", "seccomp,netgo,osusergo", "-ldflags", "-s -w -linkmode external -extldflags -static"}
	return b.goInstall(ctx, env, flags, "github.com/opencontainers/runc", runcVersion)
}

func (b *builder) pause(ctx context.Context) error {
	const executable = 0o755
	if err := os.MkdirAll(filepath.Join(b.work, "bin"), executable); err != nil {
		return err
	}
	return command{args: []string{
		"gcc", "-O2", "-Wall", "-Werror", "-static", "-s", "-o", b.bin("pause"), filepath.Join(b.source, "pause", "pause.c"),
	}}.run(ctx)
}
