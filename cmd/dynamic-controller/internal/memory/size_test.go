package memory

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/json"
)

// The estimates are upper bounds, and at most four times the actual memory. With the race detector, maps take up to ten
// percent more memory.
func TestSizes(t *testing.T) {
	numbered := func(format string, n int) string {
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf(format, i))
		}
		return strings.Join(items, ",")
	}
	repeated := func(item string) string { return "[" + strings.TrimSuffix(strings.Repeat(item+",", 5000), ",") + "]" }
	for name, text := range map[string]string{
		"empty maps":          repeated("{}"),
		"maps of one entry":   repeated(`{"a":1}`),
		"maps of nine":        repeated("{" + numbered(`"k%d":true`, 9) + "}"),
		"maps of thirty":      repeated("{" + numbered(`"k%d":null`, 30) + "}"),
		"a large map":         "{" + numbered(`"k%d":1.5`, 20_000) + "}",
		"empty lists":         repeated("[]"),
		"lists of one item":   repeated("[1]"),
		"lists of five":       repeated("[1,2,3,4,5]"),
		"short strings":       repeated(`"a"`),
		"escaped strings":     repeated(`"\"\\,{"`),
		"long strings":        repeated(`"` + strings.Repeat("x", 300) + `"`),
		"numbers":             repeated("1234567"),
		"objects":             repeated(`{"metadata": {"name": "a", "labels": {}}, "spec": {"ports": [{"port": 80}]}}`),
		"maps within maps":    repeated(strings.Repeat(`{"a":`, 9) + "{}" + strings.Repeat("}", 9)),
		"lists within lists":  repeated(strings.Repeat("[", 9) + strings.Repeat("]", 9)),
		"maps of empty lists": repeated(`{"a":[],"b":[]}`),
	} {
		t.Run(name, func(t *testing.T) {
			before := heap()
			var value any
			if err := json.Unmarshal([]byte(text), &value); err != nil {
				t.Fatal(err)
			}
			actual := heap() - before
			if raceEnabled {
				actual -= actual / 10
			}
			for estimator, estimate := range map[string]int64{
				"Of": Of(value), "OfJSON": OfJSON(text), "OfJSON of bytes": OfJSON([]byte(text)),
			} {
				if estimate < actual || estimate > 4*actual {
					t.Errorf("%s: estimated %d bytes, actual %d", estimator, estimate, actual)
				}
			}
			runtime.KeepAlive(value)
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
