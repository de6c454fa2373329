package expression_test

import (
	"encoding/json"
	"testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

func TestRun_SortsMapKeys(t *testing.T) {
	env, err := expression.NewEnv(expression.Variable{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]any{"h": 1, "g": 1, "f": 1, "e": 1, "d": 1, "c": 1, "b": 1, "a": 1}
	variables := map[string]any{"a": map[string]any{"map": keys, "list": []any{keys}}}
	for text, want := range map[string]string{
		"a.map.map(k, k)":                   `["a","b","c","d","e","f","g","h"]`,
		"a.list[0].map(k, k)":               `["a","b","c","d","e","f","g","h"]`,
		"a.list.map(m, m.map(k, k)[0])":     `["a"]`,
		"a.map.transformList(k, v, k)":      `["a","b","c","d","e","f","g","h"]`,
		"optional.ofNonZeroValue(a.map)":    `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1}`,
		"a.map == a.list[0]":                "true",
		"'a' in a.map && a.map.size() == 8": "true",
	} {
		program, err := env.Compile(text)
		if err != nil {
			t.Fatal(err)
		}
		value, _, err := program.Run(t.Context(), variables)
		if err != nil {
			t.Fatal(err)
		}
		out, _, err := value.JSON(&expression.Room{Left: 1 << 10})
		if got, _ := json.Marshal(out); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v, want %s", text, got, err, want)
		}
	}
}
