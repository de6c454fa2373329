// Package inventory contains the annotation of parents that lists the kinds and namespaces of their children, so that
// children that are no longer desired are found, even by another process. All functions are pure. Anyone who can update
// a parent can write its annotations, so that everything that is read is limited.
package inventory
