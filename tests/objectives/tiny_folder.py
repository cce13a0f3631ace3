"""Configs of tiny models, and folders with their tokenizers, as `save_pretrained` writes them."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 300}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
}
BERT = {
    "model_type": "bert",
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
TYPES = {"gpt2": GPT2, "llama": LLAMA, "bert": BERT}
SMALL = {"batch_size": 4, "sequence_length": 16}
CPU = torch.device("cpu")
WORDS = ["import os", "def main(self):", "return None", "class Error(Exception):"] * 5
BEGIN, END, PAD = 0, 1, 2


def tokenizer():
    """Byte pieces with a mark before and after each text."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    marks = ["<begin>", "<end>", "<pad>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=marks,
        show_progress=False,
    )
    found.train_from_iterator(WORDS, trainer)
    found.post_processor = processors.TemplateProcessing(
        single="<begin> $A <end>", special_tokens=[("<begin>", BEGIN), ("<end>", END)]
    )
    return found


def write(folder, values, auto="AutoModelForCausalLM", **changes):
    """Writes a folder with random weights; what comes back is the model in it."""
    import transformers

    cut = tokenizer()
    marks = {"bos_token": "<begin>", "eos_token": "<end>", "pad_token": "<pad>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=cut, **marks)
    fast.save_pretrained(folder)
    size = cut.get_vocab_size()
    numbers = {"pad_token_id": PAD, "bos_token_id": BEGIN, "eos_token_id": END, "vocab_size": size}
    config = transformers.CONFIG_MAPPING[values["model_type"]](**{**values, **numbers, **changes})
    torch.manual_seed(1)
    model = getattr(transformers, auto).from_config(config)
    model.save_pretrained(folder)
    return model.eval()
