package blueprint

import "strings"

// Estimates of the memory, in bytes, that each part of a Blueprint uses in a replica. To measure them, Blueprints were
// created with the maximum number of parts of one kind. The results were rounded up. TestMemory_estimate compares
// estimates for whole Blueprints with the actual memory usage.
const (
	memoryBase       = 64 << 10 // state of the type, such as watches and queue
	memoryByte       = 20       // one byte of the spec as JSON, including its copies in revisions and caches
	memorySchemaPart = 1 << 10  // one value in the schema, which is also in the CustomResourceDefinition
	memoryPart       = 512      // one value in a template
	memoryExpression = 4 << 10  // one compiled expression, regardless of length
	memoryCharacter  = 192      // one byte of an expression, in addition to memoryExpression
)

// Memory estimates the memory, in bytes, that a replica needs to serve the spec, without instances and their children.
// It does not compile the spec.
func (s *Spec) Memory() int64 {
	total := int64(memoryBase)
	total += memoryOf(s.Type.Schema, memorySchemaPart)
	total += int64(len(s.Type.PrinterColumns)) * memorySchemaPart
	if len(s.Type.Status) > 0 {
		total += memoryOf(s.Type.Status, memorySchemaPart+memoryPart)
	}
	for _, c := range s.Type.Conditions {
		total += int64(len(c.Status))*memoryByte + memoryOfExpressions(c.Status, 1)
		total += memoryOf(c.Reason, memoryPart) + memoryOf(c.Message, memoryPart)
	}
	for _, r := range s.Resources {
		total += memoryOf(r.Template, memoryPart) + memoryPart
		if r.ExternalRef != nil {
			total += memoryOf(r.ExternalRef.content(), memoryPart)
		}
		for _, conditions := range [][]string{r.IncludeWhen, r.ReadyWhen} {
			for _, text := range conditions {
				total += int64(len(text))*memoryByte + memoryOfExpressions(text, 1)
			}
		}
		for _, entry := range r.ForEach {
			total += memoryPart
			for name, text := range entry {
				total += int64(len(name)+len(text))*memoryByte + memoryOfExpressions(text, 1)
			}
		}
	}
	return total
}

// memoryOf estimates the memory of a value and its expressions. part is the memory of each field and item in the value.
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
		if part != memorySchemaPart { // a schema has no expressions
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
