package inventory

import (
	"slices"
	"testing"
)

func TestLargest(t *testing.T) {
	for most := range 20 {
		for limit := range most + 1 {
			calls := 0
			got := largest(most, func(n int) bool { calls++; return n <= limit })
			if got != limit || calls > 10 || limit == 0 && calls > 1 {
				t.Errorf("of %d: got %d after %d calls, want %d", most, got, calls, limit)
			}
		}
	}
}

func TestInventoryGrowsAsFarAsItFits(t *testing.T) {
	now := Parse("ConfigMap=v1/configmaps:0@c@y,Secret=v1/secrets:0@z")
	wanted := Parse("ConfigMap=v2/configmaps:1@a@b@c@y,Pod=v1/pods:1@a@x,Secret=v1/secrets:1@b@z")
	for room, want := range map[int]string{
		1000: wanted.String(),
		// Only the excess namespaces are missing.
		77: "ConfigMap=v2/configmaps:1@a@b@c@y,Pod=v1/pods:1@a,Secret=v1/secrets:1@b@z",
		73: "ConfigMap=v2/configmaps:1@a@c@y,Pod=v1/pods:1@a,Secret=v1/secrets:1@z",
		69: "ConfigMap=v2/configmaps:1@c@y,Pod=v1/pods:1,Secret=v1/secrets:1@z",
		// There is no room for another kind.
		68: "ConfigMap=v2/configmaps:1@c@y,Secret=v1/secrets:1@z",
		51: "ConfigMap=v2/configmaps:1@c@y,Secret=v1/secrets:1@z",
		// There is not even room for the recorded namespaces.
		50: now.String(),
	} {
		if got := now.Grow(wanted, room).String(); got != want {
			t.Errorf("%d bytes: got %s, want %s", room, got, want)
		}
	}
	many := withKinds(nil, maxEntries+5)
	if got := now.Grow(now.With(many), MaxBytes); len(got) != maxEntries || got.Index(now[1].Kind) < 0 {
		t.Errorf("too many kinds: got %d", len(got))
	}
}

// A packed inventory can become longer when a namespace is removed from one of its kinds.
func TestInventoryRoomForChangesIsLeft(t *testing.T) {
	const room = 40 << 10
	wanted := withKinds(manyNamespaces(10_000, randomName(20, "")), 3)
	full := Inventory(nil).Grow(wanted, room)
	if text, _ := full.fits(room); len(text) > room-room/16 || len(text) < room-room/8 {
		t.Fatalf("got %d bytes", len(text))
	}
	left := slices.Clone(full)
	left[1].Namespaces = nil
	for i, namespace := range full[1].Namespaces {
		if i%8 != 0 {
			left[1].Namespaces = append(left[1].Namespaces, namespace)
		}
	}
	if got := full.Grow(left, room); !got.Equals(left) {
		t.Errorf("the smaller inventory is not accepted; the third kind has %d of %d namespaces",
			len(got[1].Namespaces), len(left[1].Namespaces))
	}
	if got := full.Grow(wanted, room); !got.Equals(full) {
		t.Error("a full inventory grows")
	}
}
