package inventory

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
)

// manyNamespaces returns sorted namespaces with different names.
func manyNamespaces(n int, name func(i int) string) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = name(i)
	}
	return sorted(all)
}

// randomName returns a function that returns random names.
func randomName(length int, prefix string) func(int) string {
	random := rand.New(rand.NewPCG(1, 2))
	return func(int) string {
		name := []byte(prefix)
		for len(name) < length {
			name = append(name, "abcdefghijklmnopqrstuvwxyz0123456789"[random.IntN(36)])
		}
		return string(name)
	}
}

// withKinds returns an inventory with children of each kind in all namespaces.
func withKinds(namespaces []string, kinds int) (all Inventory) {
	for i := range kinds {
		entry := New(schema.GroupKind{Kind: fmt.Sprintf("Kind%03d", i)}, configMaps)
		entry.Namespaces = namespaces
		all = append(all, entry)
	}
	return all
}

func TestInventoryTenThousandNamespacesFit(t *testing.T) {
	for name, test := range map[string]struct {
		name  func(i int) string
		bytes int
	}{
		"numbered": {func(i int) string { return fmt.Sprintf("team-payments-production-%05d", i) }, 1 << 10},
		"numbered, 63 characters": {
			func(i int) string { return strings.Repeat("team-payments-", 4) + fmt.Sprintf("%07d", i) }, 1 << 10,
		},
		"8 random characters":               {randomName(13, "test-"), 64 << 10},
		"20 random characters":              {randomName(20, ""), 172 << 10},
		"63 characters, 20 of which random": {randomName(63, strings.Repeat("team-payments-", 3)+"x"), 180 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			all := withKinds(manyNamespaces(10_000, test.name), 3)
			text, fits := all.fits(MaxBytes - MaxBytes/16)
			if !fits || len(text) > test.bytes {
				t.Errorf("fits: %t; %d bytes", fits, len(text))
			}
			if !strings.HasPrefix(text, "Kind000=v1/configmaps:0,Kind001=v1/configmaps:0,Kind002=v1/configmaps:0;") {
				t.Errorf("the kinds are not readable: %.100s", text)
			}
			if !Parse(text).Equals(all) {
				t.Error("the parsed inventory differs")
			}
		})
	}
}

func TestInventoryAnyFormatRoundTrips(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		pool := manyNamespaces(rapid.IntRange(0, 300).Draw(r, "namespaces"), randomName(12, "n"))
		var all Inventory
		for _, entry := range withKinds(nil, rapid.IntRange(1, 4).Draw(r, "kinds")) {
			skip := rapid.IntRange(1, 5).Draw(r, "skip")
			for i := 0; i < len(pool); i += skip {
				entry.Namespaces = append(entry.Namespaces, pool[i])
			}
			all = append(all, entry)
		}
		text, fits := all.fits(MaxBytes)
		if !fits {
			r.Fatal("does not fit")
		}
		if packed := strings.Contains(text, ";"); packed != (len(all.String()) > maxPlainBytes) {
			r.Errorf("packed: %t, with %d bytes in plain form", packed, len(all.String()))
		}
		if diff := cmp.Diff(all.String(), Parse(text).String()); diff != "" {
			r.Error(diff)
		}
	})
}

// deflated compresses a text as pack does.
func deflated(text string) string {
	var out bytes.Buffer
	compressor, _ := flate.NewWriter(&out, flate.BestCompression)
	_, _ = compressor.Write([]byte(text))
	_ = compressor.Close()
	return base64.RawStdEncoding.EncodeToString(out.Bytes())
}

// Anyone who can update a parent can write packed namespaces.
func TestUnpack_IgnoresMalformedAndExcessNamespaces(t *testing.T) {
	bomb := "0\x80a\n" + strings.Repeat("a", 10<<20)
	var many strings.Builder
	many.WriteString("0,1,2,3,4,5,6,7,8,9")
	for i := range 60_000 {
		fmt.Fprintf(&many, "\x80%05d", i)
	}
	for name, test := range map[string]struct {
		packed     string
		namespaces int // of each kind
	}{
		"valid":                    {deflated("0,1,2,3,4,5,6,7,8,9\x80a\x80b\n"), 2},
		"an empty text":            {"", 0},
		"not base64":               {"!", 0},
		"not compressed":           {"AAAA", 0},
		"a truncated text":         {deflated("0,1,2,3,4,5,6,7,8,9\x80a\x80b\n")[:20], 0},
		"an unknown kind":          {deflated("10\x80a\n"), 0},
		"a negative kind":          {deflated("-1\x80a\n"), 0},
		"a duplicate kind":         {deflated("0,0\x80a\n"), 0},
		"no kind":                  {deflated("\x80a\n"), 0},
		"no namespace":             {deflated(strings.Repeat("0,1\n", 1000)), 0},
		"an unsorted namespace":    {deflated("0,1,2,3,4,5,6,7,8,9\x80b\x80a\n"), 1},
		"an invalid namespace":     {deflated("0,1,2,3,4,5,6,7,8,9\x80a\x80b/c\n"), 1},
		"a prefix that is missing": {deflated("0,1,2,3,4,5,6,7,8,9\x80a\x82b\n"), 1},
		"a long text":              {deflated(bomb), 0},
		"many namespaces":          {deflated(many.String()), maxUnpackedBytes / (5 + 16*10)},
	} {
		all := withKinds(nil, 10)
		all.unpack(test.packed)
		for _, entry := range all {
			if n := len(entry.Namespaces); n != test.namespaces {
				t.Errorf("%s: %s has %d namespaces, want %d", name, entry.Kind, n, test.namespaces)
				break
			}
		}
	}
}
