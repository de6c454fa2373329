package instances

import (
	"errors"
	"fmt"

	"github.com/dynamic-controller/engine/handlers/children"
)

// AdoptionAdvice is the remedy if an object that the instance did not create has the name of a child.
const AdoptionAdvice = "set adopt: true on the resource, or delete the object"

// explain describes an error for the status of an instance. The description of a child's error starts with the id of
// the resource. If a remedy is known, the description ends with it.
func explain(err error) string {
	var lines []string
	for _, each := range joined(err) {
		var failed *children.ChildError
		if isRequeue(each) && !errors.As(each, &failed) {
			continue // it only says when the next attempt is due
		}
		lines = append(lines, describe(each)+remedy(each))
	}
	return joinFirst(lines, "\n")
}

// describe returns the text of an error without the name of the instance.
func describe(err error) string {
	var failed *children.ChildError
	if !errors.As(err, &failed) {
		return err.Error()
	}
	text := fmt.Sprintf("%s %s: %v", failed.Kind.Kind, failed.NamespacedKey, failed.Err)
	if id := failed.Annotations[resourceAnnotation]; id != "" {
		return id + ": " + text
	}
	return text
}

// remedy returns the remedy to append to the message about an error, or "".
func remedy(err error) string {
	switch {
	case errors.Is(err, children.ErrNamespaceNotListed):
		return "; add the namespace to --namespaces"
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
