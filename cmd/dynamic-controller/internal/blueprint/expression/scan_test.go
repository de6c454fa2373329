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
		"nothing is nothing":  {in: ""},
		"text is text":        {in: "a $ b } { c", want: []Part{text("a $ b } { c")}},
		"an expression alone": {in: "${a.b}", want: []Part{expr("a.b")}},
		"text around and between": {
			in:   "x-${a}-${b}.",
			want: []Part{text("x-"), expr("a"), text("-"), expr("b"), text(".")},
		},
		"two dollars before a brace are the text": {in: "$${a}", want: []Part{text("${a}")}},
		"two dollars elsewhere are two dollars":   {in: "$$ $$x", want: []Part{text("$$ $$x")}},
		"a dollar before an escape stays":         {in: "$$${a}", want: []Part{text("$${a}")}},
		"a map literal has braces of its own": {
			in:   `${{"a": {"b": 1}}}x`,
			want: []Part{expr(`{"a": {"b": 1}}`), text("x")},
		},
		"a brace in a string does not end the expression": {in: `${"}" + '{'}`, want: []Part{expr(`"}" + '{'`)}},
		"an escaped quote does not end a string":          {in: `${"\"}"}`, want: []Part{expr(`"\"}"`)}},
		"an escaped backslash does not escape the quote":  {in: `${"\\"}"}`, want: []Part{expr(`"\\"`), text(`"}`)}},
		"a backslash in a raw string is a backslash":      {in: `${r"\"}`, want: []Part{expr(`r"\"`)}},
		"so it is in raw bytes, in either order": {
			in:   `${br'\'}${rb'\'}`,
			want: []Part{expr(`br'\'`), expr(`rb'\'`)},
		},
		"but not in bytes": {in: `${b'\'}'}`, want: []Part{expr(`b'\'}'`)}},
		"a long string may hold quotes and lines": {
			in:   "${\"\"\"a\"}\n\"\"\"}",
			want: []Part{expr("\"\"\"a\"}\n\"\"\"")},
		},
		"a quoted field may hold what it likes":       {in: "${self.`a}b`}", want: []Part{expr("self.`a}b`")}},
		"a comment ends with its line":                {in: "${a // } '\n}", want: []Part{expr("a // } '\n")}},
		"a comment that does not end hides the brace": {in: "${a // }", err: ErrUnclosed},
		"no brace": {in: "${a", err: ErrUnclosed},
		"a string that does not end hides the brace":          {in: "${'a}", err: ErrUnclosed},
		"a short string ends with its line, if not before it": {in: "${'a\n'}", err: ErrUnclosed},
		"a quoted field that does not end":                    {in: "${self.`a}", err: ErrUnclosed},
		"nothing in the braces":                               {in: "${ }", err: ErrEmpty},
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
