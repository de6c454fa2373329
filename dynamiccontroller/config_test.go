package dynamiccontroller

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
				MinRetryDelay: time.Millisecond, MaxRetryDelay: time.Millisecond, MaxWriteLag: 10 * time.Second,
			},
		},
		{
			name: "negative values disable parking, resyncs and waits for own writes",
			config: Config{
				Workers: 1, ResyncPeriod: -1, QueueMaxRetries: -1, ShutdownTimeout: 1, MinRetryDelay: time.Hour, MaxWriteLag: -1,
			},
			want: Config{
				Workers: 1, ResyncPeriod: -1, QueueMaxRetries: -1, ShutdownTimeout: 1,
				MinRetryDelay: time.Hour, MaxRetryDelay: time.Hour, MaxWriteLag: -1,
			},
		},
		{
			name:   "all invalid fields are reported",
			config: Config{Workers: -1, MinRetryDelay: 2, MaxRetryDelay: 1},
			errs:   []string{"Workers", "MinRetryDelay"},
		},
		{name: "a resync period without its unit", config: Config{ResyncPeriod: 30}, errs: []string{"ResyncPeriod"}},
		{name: "negative delays", config: Config{MinRetryDelay: -1, MaxRetryDelay: -1}, errs: []string{"MaxRetryDelay"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := test.config.withDefaults()
			err := got.Validate()
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
