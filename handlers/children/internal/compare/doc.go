// Package compare finds out how an object differs from the configuration that was applied to it: which fields have
// another value, which list items someone has edited, which values the API server stores in another form, and what an
// apply could not remove. All functions are pure. They use managedFields in place of the schema, which shows which
// lists have keys, but is not known.
package compare
