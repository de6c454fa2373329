package handlers

import (
	"encoding/json"
	"testing"
)

func parse(t *testing.T, s string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestCovers(t *testing.T) {
	for name, c := range map[string]struct {
		applied, object string
		want            bool
	}{
		"the same":                              {`{"a":1,"b":{"c":["x"]}}`, `{"a":1,"b":{"c":["x"]}}`, true},
		"more fields are others'":               {`{"b":{"c":"x"}}`, `{"a":1,"b":{"c":"x","d":2}}`, true},
		"another value":                         {`{"a":1}`, `{"a":2}`, false},
		"a field is gone":                       {`{"a":{"b":1}}`, `{"a":{}}`, false},
		"a map is gone":                         {`{"a":{"b":1}}`, `{}`, false},
		"an item more":                          {`{"a":["x"]}`, `{"a":["x","y"]}`, false},
		"items in another order":                {`{"a":["x","y"]}`, `{"a":["y","x"]}`, false},
		"items with defaults":                   {`{"a":[{"n":"x"}]}`, `{"a":[{"n":"x","d":1}]}`, true},
		"another type":                          {`{"a":"1"}`, `{"a":1}`, false},
		"a null that is not there":              {`{"a":null}`, `{}`, true},
		"an owner reference among others":       {`{"ownerReferences":[{"uid":"a"}]}`, `{"ownerReferences":[{"uid":"b"},{"uid":"a","name":"n"}]}`, true},
		"an owner reference that is not there":  {`{"ownerReferences":[{"uid":"a"}]}`, `{"ownerReferences":[{"uid":"b"}]}`, false},
		"owner references that are all removed": {`{"ownerReferences":[{"uid":"a"}]}`, `{}`, false},
	} {
		if got := covers(parse(t, c.applied), parse(t, c.object)); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if !covers(map[string]any{"a": int64(1)}, map[string]any{"a": float64(1)}) {
		t.Error("1 is not 1.0")
	}
}

func TestOwnsAll(t *testing.T) {
	for name, c := range map[string]struct {
		fields, applied string
		want            bool
	}{
		"all of it":                  {`{"f:a":{"f:b":{}}}`, `{"a":{"b":1}}`, true},
		"a field was taken":          {`{"f:a":{"f:b":{}}}`, `{"a":{"b":1,"c":2}}`, false},
		"all was taken":              {`{}`, `{"a":1}`, false},
		"a list owned whole":         {`{"f:a":{}}`, `{"a":[{"b":1}]}`, true},
		"a list owned whole, taken":  {`{"f:x":{}}`, `{"a":[{"b":1}]}`, false},
		"items by key":               {`{"f:a":{"k:{\"n\":\"x\"}":{".":{},"f:n":{},"f:v":{}}}}`, `{"a":[{"n":"x","v":1}]}`, true},
		"a field of an item, taken":  {`{"f:a":{"k:{\"n\":\"x\"}":{".":{},"f:n":{}}}}`, `{"a":[{"n":"x","v":1}]}`, false},
		"an item was taken":          {`{"f:a":{"k:{\"n\":\"x\"}":{".":{},"f:n":{}}}}`, `{"a":[{"n":"x"},{"n":"y"}]}`, false},
		"a set, whose items differ":  {`{"f:a":{"v:\"x\"":{}}}`, `{"a":["x"]}`, true},
		"a map that is owned, whole": {`{"f:a":{}}`, `{"a":{"b":1}}`, true},
	} {
		fields := fieldSet{}
		if err := json.Unmarshal([]byte(c.fields), &fields); err != nil {
			t.Fatal(err)
		}
		if got := fields.ownsAll(parse(t, c.applied)); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
