package expression

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestScan(t *testing.T) {
	text := func(s string) Part { return Part{Text: s} }
	expr := func(s string) Part { return Part{Text: s, Expression: true} }
	for reason, c := range map[string]struct {
		in   string
		want []Part
		err  error
	}{
		"an empty string":     {in: ""},
		"only text":           {in: "a $ b } { c", want: []Part{text("a $ b } { c")}},
		"an expression alone": {in: "${a.b}", want: []Part{expr("a.b")}},
		"text around and between expressions": {
			in:   "x-${a}-${b}.",
			want: []Part{text("x-"), expr("a"), text("-"), expr("b"), text(".")},
		},
		"an escaped expression":                   {in: "$${a}", want: []Part{text("${a}")}},
		"two dollars that do not escape anything": {in: "$$ $$x", want: []Part{text("$$ $$x")}},
		"a dollar before an escape":               {in: "$$${a}", want: []Part{text("$${a}")}},
		"a map literal": {
			in:   `${{"a": {"b": 1}}}x`,
			want: []Part{expr(`{"a": {"b": 1}}`), text("x")},
		},
		"a brace in a string":                 {in: `${"}" + '{'}`, want: []Part{expr(`"}" + '{'`)}},
		"an escaped quote in a string":        {in: `${"\"}"}`, want: []Part{expr(`"\"}"`)}},
		"an escaped backslash before a quote": {in: `${"\\"}"}`, want: []Part{expr(`"\\"`), text(`"}`)}},
		"a backslash in a raw string":         {in: `${r"\"}`, want: []Part{expr(`r"\"`)}},
		"a backslash in raw bytes, with both orders of the prefix": {
			in:   `${br'\'}${rb'\'}`,
			want: []Part{expr(`br'\'`), expr(`rb'\'`)},
		},
		"an escaped quote in bytes": {in: `${b'\'}'}`, want: []Part{expr(`b'\'}'`)}},
		"quotes and lines in a triple-quoted string": {
			in:   "${\"\"\"a\"}\n\"\"\"}",
			want: []Part{expr("\"\"\"a\"}\n\"\"\"")},
		},
		"a brace in a quoted field name":             {in: "${self.`a}b`}", want: []Part{expr("self.`a}b`")}},
		"a comment that ends with its line":          {in: "${a // } '\n}", want: []Part{expr("a // } '\n")}},
		"a comment that hides the brace":             {in: "${a // }", err: ErrUnclosed},
		"no brace":                                   {in: "${a", err: ErrUnclosed},
		"an unclosed string that hides the brace":    {in: "${'a}", err: ErrUnclosed},
		"an unclosed string that ends with its line": {in: "${'a\n'}", err: ErrUnclosed},
		"an unclosed quoted field name":              {in: "${self.`a}", err: ErrUnclosed},
		"an empty expression":                        {in: "${ }", err: ErrEmpty},
	} {
		t.Run(reason, func(t *testing.T) {
			got, err := Scan(c.in)
			if !errors.Is(err, c.err) {
				t.Fatalf("Scan(%q): error %v, want %v", c.in, err, c.err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("Scan(%q) (-want +got):\n%s", c.in, d)
			}
		})
	}
}
