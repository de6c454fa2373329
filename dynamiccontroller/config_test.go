package dynamiccontroller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
)

func TestConfig_DefaultsAndValidation(t *testing.T) {
	for _, test := range []struct {
		name   string
		config Config
		want   Config
		errs   []string // fields
	}{
		{
			name: "zero fields have defaults",
			want: DefaultConfig(),
		},
		{
			name:   "one retry delay adjusts the default of the other",
			config: Config{MaxRetryDelay: time.Millisecond},
			want: Config{
				Workers: 10, ResyncPeriod: 10 * time.Hour, QueueMaxRetries: 20, ShutdownTimeout: 20 * time.Second,
				MinRetryDelay: time.Millisecond, MaxRetryDelay: time.Millisecond,
			},
		},
		{
			name:   "negative values disable parking and resyncs",
			config: Config{Workers: 1, ResyncPeriod: -1, QueueMaxRetries: -1, ShutdownTimeout: 1, MinRetryDelay: time.Hour},
			want: Config{
				Workers: 1, ResyncPeriod: -1, QueueMaxRetries: -1, ShutdownTimeout: 1,
				MinRetryDelay: time.Hour, MaxRetryDelay: time.Hour,
			},
		},
		{
			name:   "all invalid fields are reported",
			config: Config{Workers: -1, ShutdownTimeout: -1, MinRetryDelay: 2, MaxRetryDelay: 1},
			errs:   []string{"Workers", "ShutdownTimeout", "MinRetryDelay"},
		},
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

func TestBackoff_DoublesWithEachConsecutiveFailure(t *testing.T) {
	const minimum, maximum = 10 * time.Millisecond, time.Second
	c := NewDynamicController(logr.Discard(), Config{MinRetryDelay: minimum, MaxRetryDelay: maximum}, nil)
	reg := newRegistration(c, schema.GroupVersionResource{})
	reg.group = c.queue.Open(reg.gvr, reg, fairqueue.Limits{}, reg.backoff)
	b, id, other := reg.backoff, ObjectIdentifiers{NamespacedKey: "a"}, ObjectIdentifiers{NamespacedKey: "b"}
	exact := minimum
	for failures := 1; failures < 100; failures++ {
		if reg.recordFailure("a", errors.New("on purpose")) != failures || b.NumRequeues(id) != failures {
			t.Fatalf("%d failures counted, want %d", b.NumRequeues(id), failures)
		}
		if delay := b.When(id); delay < min(exact, maximum*3/4) || delay > min(exact*3/2, maximum) {
			t.Fatalf("failure %d: the delay is %s, want about %s", failures, delay, exact)
		}
		exact = min(2*exact, maximum)
	}
	reg.recordFailure("b", errors.New("on purpose"))
	if delay := b.When(other); delay > minimum*3/2 {
		t.Errorf("the failures of one object delay another object by %s", delay)
	}
	reg.recordSuccess("a")
	reg.recordRequeue("a", 0)
	if delay := b.When(id); delay > minimum*3/2 {
		t.Errorf("a requeue after a success is delayed by %s", delay)
	}
	budget := b.budget.Tokens()
	for range 100 {
		reg.recordFailure("parked", errors.New("on purpose"))
	}
	for range retriesBurst {
		b.When(ObjectIdentifiers{NamespacedKey: "parked"})
	}
	if b.budget.Tokens() < budget {
		t.Error("retries after the maximum delay use the budget")
	}
	reg.recordSuccess("parked")
	for i := range 100_000 {
		if delay := b.When(ObjectIdentifiers{NamespacedKey: fmt.Sprint("many ", i)}); delay > maximum {
			t.Fatalf("earlier failures delay an object by %s, which exceeds the maximum", delay)
		}
	}
	reg.recordSuccess("a")
	reg.recordSuccess("b")
	if n := len(reg.records); n != 0 {
		t.Errorf("%d records remain, want none", n)
	}
}
