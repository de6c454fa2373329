package blueprint

import (
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// What the parts of a Blueprint take of a replica's memory, in bytes: measured for Blueprints with as many of one kind of part
// as there may be, and rounded up. TestMemoryIsEstimated compares the sum with what is used.
const (
	memoryBase        = 64 << 10 // the watches, the queue and what is remembered of the type
	memoryByte        = 20       // of the spec as JSON, which is stored in revisions and decoded in caches
	memorySchemaPart  = 1 << 10  // a value within the schema, which the CustomResourceDefinition has too
	memoryPart        = 512      // a value within a template
	memoryTerm        = 512      // of an expression
	memoryInstruction = 128      // of a regular expression
)

// Memory estimates how much memory serving the spec takes, its instances and their objects excepted. It is the same for the
// same spec, and does not compile it.
func (s *Spec) Memory() int64 {
	total := int64(memoryBase)
	total += memoryOf(s.Type.Schema, memorySchemaPart)
	total += int64(len(s.Type.PrinterColumns)) * memorySchemaPart
	for _, r := range s.Resources {
		total += memoryOf(r.Template, memoryPart) + memoryPart
		for _, conditions := range [][]string{r.IncludeWhen, r.ReadyWhen} {
			for _, text := range conditions {
				total += int64(len(text))*memoryByte + memoryOfExpression(unwrapped(text))
			}
		}
	}
	return total
}

// memoryOf estimates a value of which each part takes so much, and its expressions.
func memoryOf(value any, part int64) (total int64) {
	switch value := value.(type) {
	case map[string]any:
		for key, field := range value {
			total += int64(len(key))*memoryByte + memoryOf(field, part)
		}
	case []any:
		for _, item := range value {
			total += memoryOf(item, part)
		}
	case string:
		total += int64(len(value)) * memoryByte
		if part == memorySchemaPart {
			break
		}
		parts, err := expression.Scan(value)
		if err != nil {
			break // it is refused
		}
		for _, p := range parts {
			if p.Expression {
				total += memoryOfExpression(p.Text)
			}
		}
	}
	return total + part
}

func memoryOfExpression(text string) int64 {
	terms, regexes := expression.Size(text)
	return int64(terms)*memoryTerm + int64(regexes)*memoryInstruction
}
