package instances

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

func instanceAt(uid types.UID, version, phase string) *unstructured.Unstructured {
	instance := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"phase": phase}}}
	instance.SetNamespace("default")
	instance.SetName("a")
	instance.SetUID(uid)
	instance.SetResourceVersion(version)
	return instance
}

// A status is never older than what the platform has written last, and the written one does not outlast its purpose.
func TestWrittenStatuses_RestoreTheNewestStatus(t *testing.T) {
	for name, test := range map[string]struct {
		cached *unstructured.Unstructured
		after  time.Duration
		want   string
	}{
		"an older instance in the cache gets the written status": {cached: instanceAt("x", "9", "old"), want: "written"},
		"the instance as it was written is kept":                 {cached: instanceAt("x", "10", "same"), want: "same"},
		"a newer instance is kept":                               {cached: instanceAt("x", "11", "newer"), want: "newer"},
		"another instance with the name is kept":                 {cached: instanceAt("y", "9", "other"), want: "other"},
		"after a restore of etcd the cache counts": {
			cached: instanceAt("x", "9", "old"), after: 2 * statusLag, want: "old",
		},
		"versions that cannot be compared do not count": {cached: instanceAt("x", "nine", "odd"), want: "odd"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var statuses writtenStatuses
				statuses.record(instanceAt("x", "10", "written"))
				time.Sleep(test.after)
				version := test.cached.GetResourceVersion()
				statuses.restore(test.cached)
				if got, _, _ := unstructured.NestedString(test.cached.Object, "status", "phase"); got != test.want {
					t.Errorf("got status %q, want %q", got, test.want)
				}
				if test.cached.GetResourceVersion() != version {
					t.Error("the resourceVersion has changed, although the rest of the instance is as old as before")
				}
				if kept := len(statuses.instances) == 1; kept != (test.want == "written") {
					t.Errorf("the written status is kept: %t", kept)
				}
			})
		})
	}
}

// A spec that is older than the status that was written for it must not be rendered.
func TestWrittenStatuses_ReportOlderSpecs(t *testing.T) {
	var statuses writtenStatuses
	written := instanceAt("x", "10", "written")
	written.SetGeneration(5)
	statuses.record(written)
	for generation, want := range map[int64]bool{4: true, 5: false} {
		cached := instanceAt("x", "9", "old")
		cached.SetGeneration(generation)
		if got := statuses.restore(cached); got != want {
			t.Errorf("generation %d is behind: got %t", generation, got)
		}
	}
}
