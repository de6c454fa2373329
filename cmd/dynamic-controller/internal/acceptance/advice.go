package acceptance

import "fmt"

// The texts below say what to do about a rejection. The message of a rejection ends with one of them. They are exported
// so that other packages can build the same text, because everyone who can write a status can write its messages.

// AnotherTypeAdvice is the advice if a type belongs to another Blueprint.
const AnotherTypeAdvice = "use another type"

// IncompatibleAdvice describes how to allow a generation to change its schema in an incompatible way.
func IncompatibleAdvice(generation int64) string {
	return fmt.Sprintf(`to change the schema anyway, annotate the Blueprint with %s: "%d"`, incompatibleAnnotation,
		generation)
}

// ConsentAdvice describes how an existing CustomResourceDefinition allows a Blueprint.
func ConsentAdvice(crd, blueprint string) string {
	return fmt.Sprintf("run kubectl annotate crd %s %s=%s --overwrite", crd, allowedAnnotation, blueprint)
}

// ExistingTypeAdvice describes how a Blueprint can serve a type that the platform did not create.
func ExistingTypeAdvice(crd, blueprint string) string {
	return fmt.Sprintf("to serve its type unchanged, name it in spec.type.crd and run kubectl annotate crd %s %s=%s", crd,
		allowedAnnotation, blueprint)
}

// TakeoverAdvice describes how a Blueprint can serve a type that the platform created for another Blueprint.
func TakeoverAdvice(crd, blueprint string) string {
	return fmt.Sprintf("to serve its type with this Blueprint, name it in spec.type.crd and run "+
		"kubectl annotate crd %s %s- %s- %s=%s --overwrite", crd, ownerNameAnnotation, ownerUIDAnnotation,
		allowedAnnotation, blueprint)
}
