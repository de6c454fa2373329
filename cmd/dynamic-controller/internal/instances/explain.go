package instances

import (
	"errors"
	"fmt"
	"slices"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/handlers/children"
)

// Remedies for conflicts. An object that has a mark with the name of the instance can contain its data, so none of the
// remedies for such an object is to delete it.
const (
	// AdoptionAdvice is the remedy if an object that the instance did not create has the name of a child.
	AdoptionAdvice = "set adopt: true on the resource, or delete the object"
	// RetainedAdvice is the remedy if the object was kept when an earlier instance with the same name was deleted.
	RetainedAdvice = "the object can be used again with adopt: true on the resource"
	// UpgradeAdvice is the remedy if a later version of the platform has written the object.
	UpgradeAdvice = "upgrade the platform to the version that wrote the object, or a later one"
	// MarkAdvice is the remedy if the label of the object names the instance, and its annotations do not.
	MarkAdvice = "restore the annotations of the object, or remove its label " + parentLabel + " to keep the object"
)

// explain describes the problems with children, and other errors, for the status of an instance. If a remedy is known,
// the description of a problem ends with it.
func explain(compiled *blueprint.Compiled, result children.Result, err error) string {
	var lines []string
	for _, child := range result.Children {
		switch id := child.Annotations[resourceAnnotation]; {
		case child.Err == nil:
		case child.Reason == children.ReasonChangedByOthers && isSensitive(compiled, id):
			message := fmt.Sprintf("field manager %q changes it again and again", child.Manager)
			lines = append(lines, describe(child, message+inField(compiled, id, child.Field)))
		default:
			lines = append(lines, describe(child, child.Message)+remedy(child.Err))
		}
	}
	for _, other := range othersIn(result, err) {
		lines = append(lines, other.Error()+remedy(other))
	}
	return joinFirst(lines, "\n")
}

// describe returns a message about a child. It starts with the id of the resource.
func describe(child children.ChildResult, message string) string {
	text := fmt.Sprintf("%s %s: %s", child.Kind.Kind, child.NamespacedKey, message)
	if id := child.Annotations[resourceAnnotation]; id != "" {
		return id + ": " + text
	}
	return text
}

// othersIn returns the failures in an error that do not concern a desired child.
func othersIn(result children.Result, err error) (others []error) {
	if err == nil {
		return nil
	}
	for _, each := range joined(err) {
		if !isRequeue(each) && !slices.ContainsFunc(result.Children, func(child children.ChildResult) bool {
			return child.Err != nil && errors.Is(each, child.Err)
		}) {
			others = append(others, each)
		}
	}
	return others
}

// remarks describes the children that have been applied, and nevertheless differ from their desired state. Fields of
// objects that can contain data from a Secret are hidden like those in errors.
func remarks(compiled *blueprint.Compiled, result children.Result) (lines []string) {
	for _, child := range result.Children {
		if !child.IsApplied() || child.Reason == "" {
			continue
		}
		message := child.Message
		if id := child.Annotations[resourceAnnotation]; isSensitive(compiled, id) {
			message = "it differs from its template" + inField(compiled, id, child.Field)
		}
		lines = append(lines, describe(child, message))
	}
	return lines
}

// isSensitive reports whether the objects of a resource can contain data from a Secret.
func isSensitive(compiled *blueprint.Compiled, id string) bool {
	return compiled != nil && compiled.IsSensitive(id)
}

// inField returns the part of a message that names a field of an object that can contain data from a Secret.
func inField(compiled *blueprint.Compiled, id, field string) string {
	if field = compiled.KnownField(id, field); field == "" {
		return ""
	}
	return " in " + field
}

// remedy returns the remedy to append to the message about an error, or "".
func remedy(err error) string {
	switch {
	case errors.Is(err, children.ErrNamespaceNotListed):
		return "; add the namespace to --namespaces"
	case errors.Is(err, children.ErrCrossNamespaceNotListed):
		return "; add the kind to the Blueprint again until the instance has no such children"
	case errors.Is(err, children.ErrNewerFormat):
		return "; " + UpgradeAdvice
	case errors.Is(err, children.ErrInvalidMark):
		return "; " + MarkAdvice
	case errors.Is(err, children.ErrRetained):
		return "; " + RetainedAdvice
	case errors.Is(err, children.ErrAdoptionNotEnabled):
		return "; " + AdoptionAdvice
	}
	return ""
}

// shortError replaces the text of an error with a shorter one.
type shortError struct {
	error
	text string
}

func (e shortError) Error() string   { return e.text }
func (e shortError) Unwrap() []error { return []error{e.error} }

// shortened returns an error that wraps err, but whose text contains only the first few of the errors that err joins.
func shortened(err error) error {
	if all := joined(err); len(all) > 1 {
		return shortError{err, joinFirst(all, "\n")}
	}
	return err
}

// joined returns all errors that an error joins, at any level.
func joined(err error) (all []error) {
	many, is := err.(interface{ Unwrap() []error })
	if !is {
		return []error{err}
	}
	for _, each := range many.Unwrap() {
		all = append(all, joined(each)...)
	}
	return all
}
