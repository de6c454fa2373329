// Package docs checks the commands in the documentation, and runs those of examples/blueprints. It contains no code
// except tests.
//
// Each command in a code block or in inline code of a *.md file is parsed. The programs kubectl, helm and
// dynamic-controller must accept its subcommand and its flags. The files, folders, packages and targets of make that it
// names must exist. An unknown command in a code block is an error.
//
// A code block contains one command on each line, unless the line ends with a backslash. Lines that begin with "$ " are
// commands as well, and all other lines after the first of these are output. Blocks in another language, diagrams, and
// blocks whose first word is a dash or ends with a colon, such as YAML, are not checked.
//
// The commands in the code blocks of each example's README are run in order, on a control plane with the platform. If
// kubectl apply is repeated, it must fail the first time, because a type does not exist yet. If a README shows the
// output of a command, the test waits for this output, apart from the ages of objects.
//
// The folders kubectl and helm contain programs that are built from their Go modules. Because of these dependencies,
// this is a separate module.
package docs
