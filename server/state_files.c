#include "server/state_files.h"

bool files_has(const struct checkpoint *checkpoint)
{
    return checkpoint->file != NULL;
}

bool files_writing(const struct checkpoint *checkpoint)
{
    (void)checkpoint;
    return false;
}

void files_consider(struct state_tree *tree, struct checkpoint *checkpoint)
{
    (void)tree;
    (void)checkpoint;
}

void files_write_through(struct state_tree *tree, struct checkpoint *checkpoint)
{
    (void)tree;
    (void)checkpoint;
}

bool files_drop(struct state_tree *tree, struct checkpoint *checkpoint)
{
    (void)tree;
    (void)checkpoint;
    return false;
}

int files_read(struct state_tree *tree, struct checkpoint *checkpoint, struct error *err)
{
    (void)tree;
    (void)checkpoint;
    return error_set(err, ERROR_INTERNAL, "no store");
}

void state_tree_poll(struct state_tree *tree)
{
    (void)tree;
}

void state_tree_save_all(struct state_tree *tree, double deadline)
{
    (void)tree;
    (void)deadline;
}

void state_tree_found(struct state_tree *tree, const struct store_found *file)
{
    (void)tree;
    (void)file;
}
