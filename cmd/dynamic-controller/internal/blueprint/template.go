package blueprint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// node is a part of a compiled template. It makes the part of the object that it stands for: nothing if the second result
// is false.
type node interface {
	render(ctx context.Context, r *rendering) (any, bool, error)
}

// literal has no expression in it.
type literal struct {
	value any
	size  int
}

type object struct {
	keys   []string // in order, so that of several errors it is always the same one
	values []node
}

type list []node

// whole is a string that is one expression.
type whole struct{ *expressionAt }

// text is a string with expressions in it.
type text []textPart

// textPart is an expression, or text if there is none.
type textPart struct {
	text string
	*expressionAt
}

// expressionAt is an expression and where it stands.
type expressionAt struct {
	*expression.Program
	path string
	// sensitive reports whether it reads data of a Secret: see markSensitive.
	sensitive bool
}

// parsing takes templates apart. What is compiled is decided when it is known how much there is of it.
type parsing struct {
	problems *collector
	found    []*found
	bytes    int
}

// found is an expression that is to be compiled.
type found struct {
	text     string
	path     string
	owner    int // the index of the resource that it is of
	use      use
	compiled *expressionAt
}

// use is what an expression is for.
type use int

const (
	aValue use = iota
	withinText
	aString
	aText // a string that may be left out
	includes
	readies
)

func (p *parsing) expression(text, path string, owner int, purpose use) *expressionAt {
	at := &expressionAt{path: path}
	p.found = append(p.found, &found{text: text, path: path, owner: owner, use: purpose, compiled: at})
	p.bytes += len(text)
	return at
}

// parse makes a node of a template's part.
func (p *parsing) parse(v any, path string, owner int) node {
	switch v := v.(type) {
	case map[string]any:
		o, plain := object{}, true
		for _, key := range slices.Sorted(maps.Keys(v)) {
			at := child(path, key)
			if strings.Contains(key, "${") {
				p.problems.add(at, "", "a key cannot have expressions; use one that makes the whole map")
				continue
			}
			n := p.parse(v[key], at, owner)
			_, is := n.(literal)
			plain = plain && is
			o.keys, o.values = append(o.keys, key), append(o.values, n)
		}
		if plain {
			// Its strings may hold an escaped ${: what was parsed is what is meant.
			values := make(map[string]any, len(o.keys))
			for i, key := range o.keys {
				values[key] = o.values[i].(literal).value
			}
			return plainly(values)
		}
		return o
	case []any:
		l, plain := make(list, len(v)), true
		for i, item := range v {
			l[i] = p.parse(item, fmt.Sprintf("%s[%d]", path, i), owner)
			_, is := l[i].(literal)
			plain = plain && is
		}
		if plain {
			values := make([]any, len(l))
			for i, n := range l {
				values[i] = n.(literal).value
			}
			return plainly(values)
		}
		return l
	case string:
		return p.parseString(v, path, owner)
	}
	return plainly(v)
}

func (p *parsing) parseString(s, path string, owner int) node {
	parts, err := expression.Scan(s)
	switch {
	case err != nil:
		p.problems.add(path, "", "%s", err)
		return plainly("")
	case len(parts) == 0:
		return plainly("")
	case len(parts) == 1 && !parts[0].Expression:
		return plainly(parts[0].Text)
	case len(parts) == 1:
		return whole{p.expression(parts[0].Text, path, owner, wanted(path, owner))}
	}
	t := make(text, len(parts))
	for i, part := range parts {
		if part.Expression {
			t[i].expressionAt = p.expression(part.Text, path, owner, withinText)
		} else {
			t[i].text = part.Text
		}
	}
	return t
}

// wanted is what a whole string has to be: metadata's are strings.
func wanted(path string, owner int) use {
	metadata := templatePath(owner) + ".metadata."
	if path == metadata+"name" || path == metadata+"namespace" {
		return aString
	}
	for _, field := range texts {
		if rest, within := strings.CutPrefix(path, metadata+field); within && rest != "" {
			return aText
		}
	}
	return aValue
}

func plainly(v any) literal {
	size, _, _ := measure(v)
	return literal{v, size}
}

func templatePath(index int) string { return fmt.Sprintf("spec.resources[%d].template", index) }

var identifier = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_-]*$`)

func child(path, key string) string {
	if identifier.MatchString(key) {
		return path + "." + key
	}
	return fmt.Sprintf("%s[%q]", path, cut(key, maxQuoted))
}

// evaluationError is what went wrong with one expression.
type evaluationError struct {
	at    *expressionAt
	cause error
}

func (e *evaluationError) Error() string { return e.cause.Error() }
func (e *evaluationError) Unwrap() error { return e.cause }

func (n literal) render(_ context.Context, r *rendering) (any, bool, error) {
	if err := r.room.Take(n.size); err != nil {
		return nil, false, err
	}
	return runtime.DeepCopyJSONValue(n.value), true, nil
}

func (n object) render(ctx context.Context, r *rendering) (any, bool, error) {
	out := make(map[string]any, len(n.keys))
	for i, key := range n.keys {
		if err := r.room.Take(len(key) + 4); err != nil {
			return nil, false, err
		}
		value, is, err := n.values[i].render(ctx, r)
		if err != nil {
			return nil, false, err
		}
		if is {
			out[key] = value
		}
	}
	return out, true, nil
}

func (n list) render(ctx context.Context, r *rendering) (any, bool, error) {
	out := make([]any, 0, len(n))
	for _, item := range n {
		value, is, err := item.render(ctx, r)
		if err != nil {
			return nil, false, err
		}
		if is {
			out = append(out, value)
		}
	}
	return out, true, r.room.Take(len(n))
}

func (n whole) render(ctx context.Context, r *rendering) (any, bool, error) {
	value, err := r.run(ctx, n.expressionAt)
	if err != nil {
		return nil, false, err
	}
	out, is, err := value.JSON(r.room)
	return out, is, n.failed(err)
}

func (n text) render(ctx context.Context, r *rendering) (any, bool, error) {
	var s strings.Builder
	for _, part := range n {
		if part.expressionAt == nil {
			if err := r.room.Take(len(part.text)); err != nil {
				return nil, false, err
			}
			s.WriteString(part.text)
			continue
		}
		value, err := r.run(ctx, part.expressionAt)
		if err != nil {
			return nil, false, err
		}
		t, err := value.Text(r.room)
		if err != nil {
			return nil, false, part.failed(err)
		}
		s.WriteString(t)
	}
	return s.String(), true, nil
}

func (e *expressionAt) failed(err error) error {
	if err == nil || errors.Is(err, expression.ErrTooLarge) {
		return err
	}
	return &evaluationError{e, err}
}
