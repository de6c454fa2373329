package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// networkImage is the image of the DaemonSet in node/kind/manifests/default-cni.yaml.
const networkImage = "docker.io/dynamic-controller/node-network:" + kubernetesVersion

// images writes an archive with all images that the node preloads. All images except pause share one layer, which
// contains the multi-call binary under the name of each program, and iptables for kube-proxy.
func (b *builder) images(ctx context.Context) error {
	names, err := b.kubeadmImages(ctx)
	if err != nil {
		return err
	}
	archive, err := newImageArchive(b.archive(), runtime.GOARCH)
	if err != nil {
		return err
	}
	defer archive.discard()
	components, err := archive.addLayer(b.componentsLayer)
	if err != nil {
		return err
	}
	pause, err := archive.addLayer(func(l *layer) error { return l.file(b.bin("pause"), "pause") })
	if err != nil {
		return err
	}
	for _, name := range append(names, networkImage) {
		program := programOf(name)
		layer, entrypoint := components, "/usr/local/bin/"+program
		if program == "pause" {
			layer, entrypoint = pause, "/pause"
		}
		if err := archive.addImage(name, layer, imageConfig{Entrypoint: []string{entrypoint}}); err != nil {
			return err
		}
	}
	return archive.close()
}

// programOf returns the name of the program in an image, which is the last part of the image's name, without the tag.
func programOf(image string) string {
	name := filepath.Base(image)
	program, _, _ := strings.Cut(name, ":")
	return program
}

// kubeadmImages returns the images that kubeadm runs. It returns an error if containerd's configuration contains a
// different sandbox image than kubeadm uses.
func (b *builder) kubeadmImages(ctx context.Context) ([]string, error) {
	kubeadm := b.bin("kubeadm")
	if err := os.RemoveAll(kubeadm); err != nil {
		return nil, err
	}
	if err := os.Symlink("components", kubeadm); err != nil {
		return nil, err
	}
	list, err := command{args: []string{
		kubeadm, "config", "images", "list", "--kubernetes-version", kubernetesVersion,
	}}.output(ctx)
	if err != nil {
		return nil, err
	}
	names := strings.Fields(list)
	const configPath = "node/etc/containerd/config.toml"
	config, err := os.ReadFile(filepath.Join(b.source, configPath))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if programOf(name) == "pause" && !strings.Contains(string(config), `sandbox = "`+name+`"`) {
			return nil, fmt.Errorf("%s: the sandbox image of kubeadm %s is %s", configPath, kubernetesVersion, name)
		}
	}
	return names, nil
}

// componentsLayer adds the multi-call binary, and iptables and nft from Debian with their libraries.
func (b *builder) componentsLayer(l *layer) error {
	if err := l.file(b.bin("components"), "usr/local/bin/components"); err != nil {
		return err
	}
	for _, program := range []string{
		"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "etcd", "coredns", "node-network",
	} {
		if err := l.symlink("components", "usr/local/bin/"+program); err != nil {
			return err
		}
	}
	for _, dir := range []string{"tmp", "run", "var/lib", "etc/cni/net.d"} {
		if err := l.directory(dir); err != nil {
			return err
		}
	}
	debian := sysroot(b.debianDir())
	binaries := []string{"/usr/sbin/xtables-nft-multi", "/usr/sbin/nft"}
	extensions, err := debian.glob("/usr/lib/*/xtables/*.so")
	if err != nil {
		return err
	}
	files, err := debian.closure(append(binaries, extensions...))
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := l.file(debian.path(file), strings.TrimPrefix(file, "/")); err != nil {
			return err
		}
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, command := range []string{family, family + "-save", family + "-restore"} {
			if err := l.symlink("xtables-nft-multi", "usr/sbin/"+command); err != nil {
				return err
			}
		}
	}
	return nil
}
