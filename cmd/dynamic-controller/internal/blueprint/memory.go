package blueprint

import "strings"

// The memory that parts of a Blueprint use in a replica, in bytes. It was measured with Blueprints that have the
// maximum number of one kind of part, and rounded up. TestMemoryIsEstimated compares the sum with the memory in use.
const (
	memoryBase       = 64 << 10 // the watches, the queue and other state of the type
	memoryByte       = 20       // of the spec as JSON, which is stored in revisions and decoded in caches
	memorySchemaPart = 1 << 10  // a value within the schema, which the CustomResourceDefinition has too
	memoryPart       = 512      // a value within a template
	memoryExpression = 4 << 10  // a compiled expression, of any length
	memoryCharacter  = 192      // of an expression, in addition
)

// Memory estimates the memory that is needed to serve the spec, without its instances and their objects. The result
// depends only on the spec, which is not compiled.
func (s *Spec) Memory() int64 {
	total := int64(memoryBase)
	total += memoryOf(s.Type.Schema, memorySchemaPart)
	total += int64(len(s.Type.PrinterColumns)) * memorySchemaPart
	for _, r := range s.Resources {
		total += memoryOf(r.Template, memoryPart) + memoryPart
		for _, conditions := range [][]string{r.IncludeWhen, r.ReadyWhen} {
			for _, text := range conditions {
				total += int64(len(text))*memoryByte + memoryOfExpressions(text, 1)
			}
		}
	}
	return total
}

// memoryOf estimates the memory of a value and its expressions, given the memory of each part of the value.
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
		if part != memorySchemaPart {
			total += memoryOfExpressions(value, strings.Count(value, "${"))
		}
	}
	return total + part
}

func memoryOfExpressions(text string, count int) int64 {
	if count == 0 {
		return 0
	}
	return int64(count)*memoryExpression + int64(len(text))*memoryCharacter
}
