package offline

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzParse checks that any file can be parsed, and that every object and every problem has a line in the file.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("a: &a\n  <<: *a\nb: *a\n---\n--- # comment\n{kind: List, apiVersion: v1, items: [1, {}]}"))
	f.Add([]byte("other\r\r\ra b:"))
	f.Fuzz(func(t *testing.T, data []byte) {
		documents, problems := parse("file", data)
		lines := 1
		for _, lineBreak := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} { // line breaks in YAML 1.1
			lines += bytes.Count(data, []byte(lineBreak))
		}
		for _, d := range documents {
			if line := d.before + lineOf(d.node, "spec.resources[0].template"); line < 1 || line > lines {
				t.Errorf("got an object in line %d of %d", line, lines)
			}
		}
		for _, p := range problems {
			if p.line < 1 || p.line > lines+1 { // the line after the last one if the input is incomplete
				t.Errorf("got problem %s in line %d of %d", p, p.line, lines)
			}
		}
	})
}
