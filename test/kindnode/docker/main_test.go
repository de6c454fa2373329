package main

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestUnprivileged_ReplacesPrivilegedWithCapabilities(t *testing.T) {
	t.Parallel()
	args := []string{"run", "--name", "node", "--privileged", "--tmpfs", "/run", "image"}
	got := strings.Join(unprivileged(args, []string{"NET_ADMIN", "SYS_ADMIN"}), " ")
	if strings.Contains(got, "--privileged") {
		t.Errorf("got arguments with --privileged: %s", got)
	}
	for _, want := range []string{"run --name node ", "--cap-add NET_ADMIN --cap-add SYS_ADMIN", " --tmpfs /run image"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing from the arguments: %s", want, got)
		}
	}
	if args[3] != "--privileged" {
		t.Error("the arguments of the caller were modified")
	}
}

func TestUnprivileged_RemovesPrivilegedFromExec(t *testing.T) {
	t.Parallel()
	got := unprivileged([]string{"exec", "--privileged", "-i", "node", "cat"}, []string{"NET_ADMIN"})
	if want := []string{"exec", "-i", "node", "cat"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUnprivileged_KeepsOtherCommands(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"ps", "-a"}, {"run", "image"}, {"build", "--privileged"}} {
		if got := unprivileged(args, []string{"NET_ADMIN"}); !reflect.DeepEqual(got, args) {
			t.Errorf("got %q, want %q", got, args)
		}
	}
}

func TestBoundingSet_ReturnsCapabilityNames(t *testing.T) {
	t.Parallel()
	// All capabilities except CAP_SYS_RESOURCE, bit 24.
	got, err := boundingSet("Name:\tx\nCapBnd:\t000001fffeffffff\nSeccomp:\t0\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(capabilityNames)-1 || slices.Contains(got, "SYS_RESOURCE") || !slices.Contains(got, "SYS_ADMIN") {
		t.Errorf("got %q, want all capabilities except SYS_RESOURCE", got)
	}
	if _, err := boundingSet("Name:\tx\n"); err == nil {
		t.Error("got no error for a status without capabilities")
	}
}
