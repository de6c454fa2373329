package listwatch

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// A watch that was closed early is followed by a relist only if the type may be a custom resource. A ListWatch without
// a relist limiter is for other types, even if their group contains a dot.
func TestOnlyCustomResourcesAreRelistedAfterAnEarlyClose(t *testing.T) {
	for name, test := range map[string]struct {
		group  string
		shared *rate.Limiter
		want   error
	}{
		"a group of CRDs":                    {"example.com", NewRelistLimiter(), ErrRelist},
		"a built-in group without a dot":     {"apps", NewRelistLimiter(), nil},
		"a group with a dot, but no limiter": {"apiextensions.k8s.io", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := newResumption(test.group, test.shared)
			r.begin()
			options := metav1.ListOptions{TimeoutSeconds: ptr.To[int64](300)}
			requested := time.Now()
			r.watching(requested, options)
			if err := r.check(&options, requested.Add(time.Minute)); !errors.Is(err, test.want) {
				t.Errorf("got error %v, want %v", err, test.want)
			}
			if *options.TimeoutSeconds != 300 {
				t.Errorf("the timeout was changed to %d seconds", *options.TimeoutSeconds)
			}
		})
	}
}
