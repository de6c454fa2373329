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
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
)

// node is a part of a compiled template. Its render method returns the rendered part, or false if the part is omitted.
type node interface {
	render(ctx context.Context, r *rendering) (any, bool, error)
}

// literal is a part without expressions.
type literal struct {
	value  any
	size   int   // as JSON
	memory int64 // in decoded form
}

type object struct {
	keys   []string // sorted so that the same error is always reported first
	values []node
}

type list []node

// whole is a string that consists of a single expression.
type whole struct{ *expressionAt }

// text is a string that contains expressions.
type text []textPart

// textPart is either an expression or, if expressionAt is nil, literal text.
type textPart struct {
	text string
	*expressionAt
}

// expressionAt is an expression and its path.
type expressionAt struct {
	*expression.Program
	path string
	// collection is the collection whose variables the expression can read, or nil.
	collection *resource
	// sensitive reports whether the expression reads data from a Secret. See markSensitive.
	sensitive bool
}

// parsing parses templates and collects their expressions. The expressions are compiled once their total number is
// known.
type parsing struct {
	problems *collector
	found    []*found
	bytes    int
}

// found is an expression of a Blueprint and its context. compileAll compiles text and sets compiled.Program.
type found struct {
	text     string
	path     string
	owner    int // index of the resource, or ofType
	use      use
	compiled *expressionAt
}

// use is the purpose of an expression. It determines which type of value the expression must yield.
type use int

const (
	aValue use = iota
	withinText
	aString
	aText // an optional string
	includes
	readies
	reports // the boolean status of a condition
	iterates
)

// ofType is the owner of expressions in spec.type.
const ofType = -1

func (p *parsing) expression(text, path string, owner int, purpose use) *expressionAt {
	at := &expressionAt{path: path}
	p.found = append(p.found, &found{text: text, path: path, owner: owner, use: purpose, compiled: at})
	p.bytes += len(text)
	return at
}

func (p *parsing) conditions(list []string, path string, owner int, purpose use) (out []*expressionAt) {
	if len(list) > MaxConditions {
		p.problems.add(path, "", "has more than %d expressions", MaxConditions)
		return nil
	}
	for i, s := range list {
		out = append(out, p.expression(unwrapped(s), fmt.Sprintf("%s[%d]", path, i), owner, purpose))
	}
	return out
}

// unwrapped removes the optional ${} around a condition or a list expression.
func unwrapped(s string) string {
	if parts, err := expression.Scan(s); err == nil && len(parts) == 1 && parts[0].Expression {
		return parts[0].Text
	}
	return s
}

// parse parses one part of a template.
func (p *parsing) parse(v any, path string, owner int) node {
	switch v := v.(type) {
	case map[string]any:
		o := object{}
		values := make(map[string]any, len(v)) // values without expressions, with $${ unescaped
		for _, key := range slices.Sorted(maps.Keys(v)) {
			at := child(path, key)
			if strings.Contains(key, "${") {
				p.problems.add(at, "", "keys must not contain expressions; use an expression that yields the whole map")
				continue
			}
			n := p.parse(v[key], at, owner)
			if l, is := n.(literal); is {
				values[key] = l.value
			}
			o.keys, o.values = append(o.keys, key), append(o.values, n)
		}
		if len(values) == len(o.keys) {
			return newLiteral(values)
		}
		return o
	case []any:
		l, values := make(list, len(v)), make([]any, 0, len(v))
		for i, item := range v {
			l[i] = p.parse(item, fmt.Sprintf("%s[%d]", path, i), owner)
			if n, is := l[i].(literal); is {
				values = append(values, n.value)
			}
		}
		if len(values) == len(l) {
			return newLiteral(values)
		}
		return l
	case string:
		return p.parseString(v, path, owner)
	}
	return newLiteral(v)
}

func (p *parsing) parseString(s, path string, owner int) node {
	parts, err := expression.Scan(s)
	switch {
	case err != nil:
		p.problems.add(path, "", "%s", err)
		return newLiteral("")
	case len(parts) == 0:
		return newLiteral("")
	case len(parts) == 1 && !parts[0].Expression:
		return newLiteral(parts[0].Text)
	case len(parts) == 1:
		return whole{p.expression(parts[0].Text, path, owner, useAt(path, owner))}
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

// useAt returns the use of an expression that makes up a whole string. Values in metadata and externalRef, and the
// reasons and messages of conditions, must be strings. All other values can have any type.
func useAt(path string, owner int) use {
	if strings.HasPrefix(path, conditionsPath) {
		return aText
	}
	metadata := fmt.Sprintf("spec.resources[%d].template.metadata.", owner)
	if path == metadata+"name" || path == metadata+"namespace" ||
		strings.HasPrefix(path, fmt.Sprintf("spec.resources[%d].externalRef.", owner)) {
		return aString
	}
	for _, field := range stringMaps {
		if rest, within := strings.CutPrefix(path, metadata+field); within && rest != "" {
			return aText
		}
	}
	return aValue
}

func newLiteral(v any) literal {
	size, _, _ := measure(v)
	return literal{v, size, memory.Of(v)}
}

var identifier = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_-]*$`)

// child returns the path of a field.
func child(path, key string) string {
	if identifier.MatchString(key) {
		return path + "." + key
	}
	return fmt.Sprintf("%s[%q]", path, Cut(key, maxQuoted))
}

// evaluationError is returned if an expression cannot be evaluated.
type evaluationError struct {
	at    *expressionAt
	cause error
}

func (e *evaluationError) Error() string { return e.cause.Error() }
func (e *evaluationError) Unwrap() error { return e.cause }

func (n literal) render(_ context.Context, r *rendering) (any, bool, error) {
	if err := errors.Join(r.room.Take(n.size), r.room.Allocate(n.memory)); err != nil {
		return nil, false, err
	}
	return runtime.DeepCopyJSONValue(n.value), true, nil
}

func (n object) render(ctx context.Context, r *rendering) (any, bool, error) {
	if err := r.room.Allocate(memory.OfMap(len(n.keys))); err != nil {
		return nil, false, err
	}
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
	if err := r.room.Allocate(memory.OfList(len(n))); err != nil {
		return nil, false, err
	}
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
