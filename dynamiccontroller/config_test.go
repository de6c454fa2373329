package dynamiccontroller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestConfig(t *testing.T) {
	for _, test := range []struct {
		name   string
		config Config
		want   Config
		errs   []string // fields
	}{
		{
			name: "a zero config works",
			want: DefaultConfig(),
		},
		{
			name:   "a delay that is given moves the default of the other",
			config: Config{MaxRetryDelay: time.Millisecond},
			want:   Config{Workers: 10, ResyncPeriod: 10 * time.Hour, QueueMaxRetries: 20, ShutdownTimeout: 20 * time.Second, MinRetryDelay: time.Millisecond, MaxRetryDelay: time.Millisecond},
		},
		{
			name:   "negative retries and resync are for ever and never",
			config: Config{Workers: 1, ResyncPeriod: -1, QueueMaxRetries: -1, ShutdownTimeout: 1, MinRetryDelay: time.Hour},
			want:   Config{Workers: 1, ResyncPeriod: -1, QueueMaxRetries: -1, ShutdownTimeout: 1, MinRetryDelay: time.Hour, MaxRetryDelay: time.Hour},
		},
		{name: "all nonsense is named at once", config: Config{Workers: -1, ShutdownTimeout: -1, MinRetryDelay: 2, MaxRetryDelay: 1}, errs: []string{"Workers", "ShutdownTimeout", "MinRetryDelay"}},
		{name: "a resync period without its unit", config: Config{ResyncPeriod: 30}, errs: []string{"ResyncPeriod"}},
		{name: "negative delays", config: Config{MinRetryDelay: -1, MaxRetryDelay: -1}, errs: []string{"MaxRetryDelay"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := test.config.withDefaults()
			err := got.validate()
			if len(test.errs) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Error(diff)
				}
				return
			}
			for _, field := range test.errs {
				if err == nil || !strings.Contains(err.Error(), "Config."+field) {
					t.Errorf("want an error that names %s, got %v", field, err)
				}
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	b := newLimiter(10*time.Millisecond, time.Second).(*backoff)
	a, other := ObjectIdentifiers{NamespacedKey: "a"}, ObjectIdentifiers{NamespacedKey: "b"}
	least := 10 * time.Millisecond
	for failure := range 100 {
		if b.NumRequeues(a) != failure {
			t.Fatalf("%d failures counted, want %d", b.NumRequeues(a), failure)
		}
		most := min(least*3/2, time.Second)
		if delay := b.When(a); delay < min(least, time.Second*3/4) || delay > most {
			t.Fatalf("failure %d: a delay of %s, want between %s and %s", failure, delay, least, most)
		}
		least = min(2*least, time.Second)
	}
	if delay := b.When(other); delay > 15*time.Millisecond {
		t.Errorf("one item's failures delay another by %s", delay)
	}
	b.Forget(a)
	if delay := b.When(a); delay > 15*time.Millisecond {
		t.Errorf("a forgotten item is delayed by %s", delay)
	}
	for i := range 100_000 {
		if delay := b.When(ObjectIdentifiers{NamespacedKey: fmt.Sprint("many ", i)}); delay > time.Second {
			t.Fatalf("what failed before delays an item by %s, above the longest", delay)
		}
	}
	if len(b.failures) != 100_002 {
		t.Errorf("%d items are known", len(b.failures))
	}
}
