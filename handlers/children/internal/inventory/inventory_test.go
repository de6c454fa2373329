package inventory

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestInventoryFormatRoundTrips(t *testing.T) {
	for _, text := range []string{
		"", "ConfigMap=v1/configmaps:0", "Job.batch=v1/jobs:0@a,Secret=v1/secrets:1@a@b,Widget.example.com=v1/widgets:2@c",
	} {
		if got := Parse(text).String(); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
}

func TestInventoryWithAndWithout(t *testing.T) {
	i := Parse("ConfigMap=v1/configmaps:2@b,Widget.example.com=v1/widgets:0").
		With(Parse("ConfigMap=v1/configmaps:1@c@a,Widget.example.com=v2/widgets:1@a"))
	if i.String() != "ConfigMap=v1/configmaps:2@a@b@c,Widget.example.com=v2/widgets:1@a" {
		t.Errorf("with: got %s", i)
	}
	const widgetsOnly = "Widget.example.com=v2/widgets:1@a"
	if left := i.Without(Inventory{{Kind: configMapKind}}).String(); left != widgetsOnly {
		t.Errorf("without: got %s", left)
	}
}

func TestParseInventoryDropsMalformedEntries(t *testing.T) {
	for name, text := range map[string]string{
		"empty":                    ",,",
		"no kind":                  "=v1/configmaps:0",
		"only a group":             ".example.com=v1/widgets:0",
		"no version":               "ConfigMap=/configmaps:0",
		"no resource":              "ConfigMap=v1/:0",
		"no slash":                 "ConfigMap=v1:0",
		"a path as the resource":   "ConfigMap=v1/../../apis/apps/v1/deployments:0",
		"a path as the version":    "ConfigMap=../configmaps:0",
		"a subresource":            "ConfigMap=v1/configmaps/status:0",
		"a query":                  "ConfigMap=v1/configmaps?watch=1:0",
		"a path as the group":      "Widget.example.com/v1/x=v1/widgets:0",
		"a space":                  "Config Map=v1/configmaps:0",
		"no stage":                 "Pod=v1/pods",
		"an invalid stage":         "Pod=v1/pods:x",
		"an invalid namespace":     "Pod=v1/pods:0@a/b",
		"a second entry of a kind": "ConfigMap=v2/others:0",
	} {
		if got := Parse("ConfigMap=v1/configmaps:0," + text).String(); got != "ConfigMap=v1/configmaps:0" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func TestParseInventoryLimits(t *testing.T) {
	var short, long []string
	for i := range 2 * maxEntries {
		short = append(short, fmt.Sprintf("K%d=v1/k%d:0", i, i))
		long = append(long, fmt.Sprintf("K%d.%s.x.io=v1/k%d:0", i, strings.Repeat("a", 200), i))
	}
	if n := len(Parse(strings.Join(short, ","))); n != maxEntries {
		t.Errorf("got %d entries", n)
	}
	read := Parse(strings.Join(long, ","))
	if n := len(read.String()); n > MaxBytes || n < MaxBytes-400 {
		t.Errorf("got %d bytes", n)
	}
	for _, entry := range read {
		if entry.Resource != strings.ToLower(entry.Kind.Kind) {
			t.Errorf("got a truncated entry: %s", entry)
		}
	}
	if all := Parse(strings.Repeat("a", 2*MaxBytes)); len(all) > 0 {
		t.Errorf("got %d entries", len(all))
	}
}

// Entries of other kinds are kept as far as they fit, and never displace those of accepted kinds.
func TestInventoryAcceptedEntriesComeFirst(t *testing.T) {
	var others Inventory
	for i := range maxEntries {
		others = append(others, New(schema.GroupKind{Kind: fmt.Sprintf("A%d", i)}, configMaps))
	}
	text, _ := Inventory{New(widgetKind, widgets)}.Annotation(others, MaxBytes).(string)
	if !strings.HasPrefix(text, "Widget.example.com=v1/widgets:0,A0=v1/configmaps:0,") {
		t.Fatalf("got %.100s", text)
	}
	isWidget := func(kind schema.GroupKind) bool { return kind == widgetKind }
	accepted, rest := Parse(text).Split(isWidget)
	if len(accepted) != 1 || len(rest) != maxEntries-1 {
		t.Errorf("got %d accepted and %d other entries", len(accepted), len(rest))
	}
	if text := accepted.Annotation(rest, 100).(string); !strings.HasPrefix(text, "Widget") || len(text) > 100 ||
		len(text) < 100-len(rest[0].String()) {
		t.Errorf("with 100 bytes: got %s", text)
	}
}
